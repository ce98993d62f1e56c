"""Ranges as TensorFlow's profiler sees them.

Where Python runs eagerly, a range is a trace annotation on its thread. Where it builds a graph (in the body of a
`tf.function`), the time it takes is that of building, once; there the range is a name scope instead, so that the ops
that it makes carry its name in every later step's trace.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


def mark(tensorflow: Any, label: str, number: int | None, *, step: bool) -> AbstractContextManager[object] | None:
    """The mark for a range, not entered yet; None where nobody would see it.

    Args:
        tensorflow: the module, which the program has imported.
        label: the range's name with its prefix.
        number: drawn beside it; of a step, the number of the step.
        step: it is a step, which the profiler's tools group events by.
    """
    executing_eagerly = getattr(tensorflow, "executing_eagerly", None)
    if executing_eagerly is None:  # still being imported
        return None
    if not executing_eagerly():
        scope: AbstractContextManager[object] = tensorflow.name_scope(label)
        return scope
    trace = tensorflow.profiler.experimental.Trace  # asks by itself whether a profiler runs
    if number is None:
        made: AbstractContextManager[object] = trace(label)
    elif step:
        made = trace(label, step_num=number, _r=1)
    else:
        made = trace(label, number=number)
    return made
