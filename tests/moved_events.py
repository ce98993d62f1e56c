"""Select, change or reorder the events of a trace, and update all references to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from gpudiag.model.event import NO_NUMBER, EventTable, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def with_rows(trace: Trace, columns: Mapping[str, NDArray[Any]], came_from: NDArray[np.intp]) -> Trace:
    """Return the trace with a table of `columns`, sorted by start; drop references to missing events.

    `came_from` has the original row of each row of `columns`, or a negative number for a new event.
    """
    order = np.lexsort((-columns["end_ns"], columns["start_ns"]))
    place = {int(row): index for index, row in enumerate(came_from[order].tolist()) if row >= 0}
    marks = []
    for kind in trace.step_marks:
        kept = np.array([row in place for row in kind.row.tolist()], np.bool_)
        rows = np.array([place[row] for row in kind.row[kept].tolist()], np.intp)
        by_start = np.argsort(rows)
        if len(rows):
            marks.append(replace(kind, row=rows[by_start], number=kind.number[kept][by_start]))
    waits = trace.event_waits
    kept = np.array([row in place for row in waits.call.tolist()], np.bool_)
    waits = replace(waits, **{name: getattr(waits, name)[kept] for name in waits.__struct_fields__})
    return replace(
        trace,
        events=EventTable(names=trace.events.names, **{name: column[order] for name, column in columns.items()}),
        collectives=tuple(replace(call, row=place[call.row]) for call in trace.collectives if call.row in place),
        step_marks=tuple(marks),
        event_waits=replace(
            waits,
            call=np.array([place[row] for row in waits.call.tolist()], np.int64),
            record=np.array([place.get(row, NO_NUMBER) for row in waits.record.tolist()], np.int64),
        ),
    )
