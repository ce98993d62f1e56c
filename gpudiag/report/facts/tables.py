"""Arrange the measurements of a machine in tables and matrices, for the terminal and the HTML pages."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from gpudiag.model.facts import QUEUED, Bandwidth, Collective, CollectiveFit, Facts, Latency

#: Transports and their names in reports, in the order in which reports show them.
STRATEGIES = {
    "nccl": "NCCL",
    "nccl-queued": "NCCL queued",
    "nccl-ring": "NCCL ring",
    "nccl-tree": "NCCL tree",
    "nccl-no-p2p": "NCCL, no peer access",
    "nccl-no-p2p-queued": "NCCL, no peer access, queued",
    "gloo": "gloo",
    "host-staged": "staged on host",
}
#: Label of the row with copies of all GPUs at the same time.
AT_ONCE = "all at once"
#: Collectives of at least this size are described by their bandwidth, smaller collectives by their time.
LATENCY_BOUND_BYTES = 1 << 20
#: A ceiling (the rate that the hardware can reach) is wrong if a measured rate exceeds the ceiling by more than this
#: factor. A smaller excess is a measurement error.
_ABOVE = 1.03
#: Message sizes in the table of collectives: enough to show how time and bandwidth change with size.
_TELLING_SIZES = tuple(1 << power for power in (10, 13, 16, 18, 20, 22, 24, 25, 26, 28, 29))


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a matrix.

    Attributes:
        share: the figure as a share of its ceiling if `of_ceiling`, or else of the best figure in its table.
        corrupt: True if the copied data differ from the original.
        tip: details for a tooltip.
    """

    value: float
    share: float | None
    of_ceiling: bool = True
    corrupt: bool = False
    tip: str = ""


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """Figures by row and column; None if not measured. With `by_column`, each column has its own ceiling."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    note: str = ""
    by_column: bool = False

    def cells(self) -> list[Cell]:
        """Return every figure."""
        return [cell for _, row in self.rows for cell in row if cell is not None]


def gpu_number(endpoint: str) -> int | None:
    """Return the index i, of at most five digits, in the endpoint `gpu:<i>`; None for any other endpoint."""
    kind, _, number = endpoint.partition(":")
    return int(number) if kind == "gpu" and number.isascii() and number.isdigit() and len(number) < 6 else None


def _cell(record: Bandwidth, best: float | None = None) -> Cell:
    """Return the cell of a record. A pageable copy is compared with `best`, because the host limits its rate.

    `best` is the largest rate of the same kind in GB/s. Without ceiling and without `best`, the share is None.
    """
    ceiling = record.ceiling_gb_per_s
    by_ceiling = bool(ceiling) and record.memory != "pageable"
    base = ceiling if by_ceiling else best
    tip = f"{record.gb_per_s:.2f} GB/s"
    if ceiling:
        tip += f", {100 * record.gb_per_s / ceiling:.0f} % of {ceiling:.1f}"
    if record.cv is not None:
        tip += f", varies by {100 * record.cv:.1f} % over {record.repeats} repeats"
    verified = {True: "data verified", False: "DATA CORRUPTED", None: "data not verified"}[record.verified]
    return Cell(
        value=record.gb_per_s,
        share=record.gb_per_s / base if base else None,
        of_ceiling=by_ceiling,
        corrupt=record.verified is False,
        tip=f"{tip}, {verified}",
    )


#: Memory, path and direction of a copy between host and device.
_HostColumn = tuple[str, str, str]
_HOST_COLUMNS: dict[_HostColumn, str] = {
    ("pinned", "host_to_device", "one_way"): "pinned →",
    ("pinned", "device_to_host", "one_way"): "pinned ←",
    ("pinned", "host_to_device", "both_ways"): "pinned ↔",
    ("pageable", "host_to_device", "one_way"): "pageable →",
    ("pageable", "device_to_host", "one_way"): "pageable ←",
    ("pageable", "host_to_device", "both_ways"): "pageable ↔",
    ("device", "device_to_device", "one_way"): "within",
}


def host_matrix(facts: Facts) -> Matrix | None:
    """Return the rates of host-GPU copies: a row for each GPU and one for all at once; None without measurements."""
    records = _host_records(facts)
    if not records:
        return None
    endpoints = {endpoint for by_endpoint in records.values() for endpoint in by_endpoint}
    numbers = sorted({number for number in map(gpu_number, endpoints) if number is not None})
    labels = {f"gpu:{number}": f"GPU {number}" for number in numbers} | ({"all": AT_ONCE} if "all" in endpoints else {})
    return Matrix(
        title="Between host and GPU, GB/s",
        columns=tuple(_HOST_COLUMNS[column] for column in records),
        rows=tuple(
            (label, tuple(_host_cell(by_endpoint, endpoint) for by_endpoint in records.values()))
            for endpoint, label in labels.items()
        ),
        note="→ to the GPU, ← to the host, ↔ both ways at once (sum); within: a copy inside the GPU, counted once",
        by_column=True,
    )


def _host_records(facts: Facts) -> dict[_HostColumn, dict[str, Bandwidth]]:
    """Return the records of each column by the device's endpoint, without empty columns and without other records."""
    records: dict[_HostColumn, dict[str, Bandwidth]] = {column: {} for column in _HOST_COLUMNS}
    for record in facts.bandwidth:
        by_endpoint = records.get((record.memory, record.path, record.direction), {})
        by_endpoint[record.dst if record.path == "host_to_device" else record.src] = record
    return {column: by_endpoint for column, by_endpoint in records.items() if by_endpoint}


def _host_cell(by_endpoint: dict[str, Bandwidth], endpoint: str) -> Cell | None:
    """Return the cell of an endpoint's record in a column; None without a record."""
    if endpoint not in by_endpoint:
        return None
    # The sum over all GPUs is not comparable with the rates of single GPUs.
    single = (record.gb_per_s for name, record in by_endpoint.items() if name != "all")
    return _cell(by_endpoint[endpoint], None if endpoint == "all" else max(single))


def copy_matrices(facts: Facts) -> list[Matrix]:
    """Return the matrices of copies between host and GPUs, then the matrices of copies between GPUs."""
    host = host_matrix(facts)
    return [*([] if host is None else [host]), *peer_matrices(facts)]


def peer_matrices(facts: Facts) -> list[Matrix]:
    """Return a matrix for each kind of copies between GPUs, from the row's GPU to the column's GPU."""
    kinds = (
        ("Direct, one way, issued by the receiver (read)", True, "one_way", "dst"),
        ("Direct, one way, issued by the sender (write)", True, "one_way", "src"),
        ("Direct, both ways at once (sum)", True, "both_ways", "dst"),
        ("Peer access off, one way", False, "one_way", None),
        ("Peer access off, both ways at once (sum)", False, "both_ways", None),
    )
    matrices = []
    for title, access, direction, initiator in kinds:
        records = [
            record
            for record in facts.bandwidth
            if (record.path, bool(record.peer_access), record.direction) == ("peer", access, direction)
            and (initiator is None or record.initiator in {initiator, None})  # copies by an unknown GPU are in both
        ]
        if records:
            matrices.append(_square(f"{title}, GB/s", records, symmetric=direction == "both_ways"))
    return matrices


def _square(title: str, records: Sequence[Bandwidth], *, symmetric: bool) -> Matrix:
    """Return a matrix of copies between GPUs. If `symmetric`, a record counts for both directions of its pair."""
    best = max(record.gb_per_s for record in records)
    cells: dict[tuple[int, int], Cell] = {}
    for record in records:
        a, b = gpu_number(record.src), gpu_number(record.dst)
        if a is None or b is None:
            continue
        cells[a, b] = _cell(record, best)
        if symmetric:
            cells[b, a] = cells[a, b]
    numbers = sorted({number for pair in cells for number in pair})
    rows = tuple((f"GPU {a}", tuple(cells.get((a, b)) for b in numbers)) for a in numbers)
    return Matrix(title=title, columns=tuple(map(str, numbers)), rows=rows)


def latency_rows(facts: Facts) -> list[tuple[str, float, float, float]]:
    """Return (kind, median, minimum, maximum) of latencies in µs over all GPUs or pairs."""
    groups: dict[str, list[float]] = {}
    for measured in facts.latency:
        groups.setdefault(_latency_kind(measured), []).append(measured.time_us)
    return [(kind, statistics.median(times), min(times), max(times)) for kind, times in groups.items()]


def _latency_kind(measured: Latency) -> str:
    """Return the measured operation and its path in words, as in `copy of 16 bytes, host to GPU`."""
    between = measured.src != "host" and measured.dst not in {"host", measured.src}
    access = "" if not between or measured.peer_access else ", peer access off"
    if measured.kind == "small_copy":
        path = "GPU to GPU" if between else "host to GPU" if measured.src == "host" else "GPU to host"
        return f"copy of 16 bytes, {path}{access}"
    memory = "another GPU's memory" if between else "host memory" if measured.dst == "host" else "its own memory"
    return f"dependent load from {memory}"


def strategies_of(names: Iterable[str]) -> list[str]:
    """Return transports in their usual order, unknown transports last."""
    present = list(dict.fromkeys(names))
    return [name for name in STRATEGIES if name in present] + [name for name in present if name not in STRATEGIES]


def collective_matrix(facts: Facts) -> Matrix | None:
    """Return all-reduces by size and transport: µs below 1 MiB, bus GB/s from there on; None without measurements."""
    by_key = {(measured.bytes, measured.strategy): measured for measured in facts.collectives}
    if not by_key:
        return None
    names = strategies_of(name for _, name in by_key)
    every = sorted({size for size, _ in by_key})
    sizes = [size for size in every if size in _TELLING_SIZES] or every
    rows = []
    for size in sizes:
        unit = "µs" if size < LATENCY_BOUND_BYTES else "GB/s"
        rows.append((f"{binary_size(size)} {unit}", _collective_row([by_key.get((size, name)) for name in names])))
    ranks = "/".join(str(count) for count in sorted({measured.ranks for measured in facts.collectives}))
    return Matrix(
        title=f"All-reduce over {ranks} ranks: time below 1 MiB, bus bandwidth from there on",
        columns=tuple(STRATEGIES.get(name, name) for name in names),
        rows=tuple(rows),
    )


def _collective_row(records: Sequence[Collective | None]) -> tuple[Cell | None, ...]:
    """Return the cells of one message size.

    A value is compared with the best value of its kind: queued transports, or transports whose times include launching.
    """
    best: dict[bool, float] = {}
    for record in filter(None, records):
        queued, value = record.strategy.endswith(QUEUED), _shown_value(record)
        pick = min if _is_small(record) else max
        best[queued] = pick(best.get(queued, value), value)
    return tuple(
        None if record is None else _collective_cell(record, best[record.strategy.endswith(QUEUED)])
        for record in records
    )


def _collective_cell(record: Collective, best: float) -> Cell:
    """Return a cell with its share of `best`, which is the shortest time or the largest bandwidth; see `_is_small`."""
    value = _shown_value(record)
    return Cell(
        value=value,
        share=best / value if _is_small(record) else value / best,
        of_ceiling=False,
        corrupt=record.verified is False,
        tip=f"{record.time_us:.1f} µs, bus bandwidth {record.busbw_gb_per_s:.2f} GB/s",
    )


def _is_small(record: Collective) -> bool:
    return record.bytes < LATENCY_BOUND_BYTES


def _shown_value(record: Collective) -> float:
    """Return the time in µs of a small collective, or the bus bandwidth in GB/s of a large one."""
    return record.time_us if _is_small(record) else record.busbw_gb_per_s


def fits(facts: Facts) -> list[tuple[str, CollectiveFit]]:
    """Return each transport's fitted latency and bandwidth, in the usual order."""
    by_name = {fit.strategy: fit for fit in facts.collective_fits}
    return [(STRATEGIES.get(name, name), by_name[name]) for name in strategies_of(by_name)]


def binary_size(size: int) -> str:
    """Return a power of two with its binary unit: `64 KiB`, `512 MiB`."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):g} {unit}"
    return f"{size} B"


def host_memory_rows(facts: Facts) -> list[tuple[str, Bandwidth]]:
    """Return (label, record) of each copy within or between NUMA nodes."""
    return [
        (record.src if record.src == record.dst else f"{record.src} → {record.dst}", record)
        for record in facts.bandwidth
        if record.path == "host_memory"
    ]


def ceiling_sources(facts: Facts) -> list[tuple[str, float]]:
    """Return (source, GB/s) of the known one-way ceilings, except the sums for all GPUs."""
    ceilings: dict[str, float | None] = {}
    for record in facts.bandwidth:
        if record.ceiling_source and record.direction == "one_way" and "all" not in {record.src, record.dst}:
            ceilings.setdefault(record.ceiling_source, record.ceiling_gb_per_s)
    return [(source, ceiling) for source, ceiling in ceilings.items() if ceiling is not None]


def above_ceilings(facts: Facts) -> list[str]:
    """Return a line per ceiling that a measurement exceeds, with the largest excess."""
    worst: dict[tuple[str, float], float] = {}
    for record in facts.bandwidth:
        ceiling = record.ceiling_gb_per_s
        if ceiling and record.gb_per_s > _ABOVE * ceiling:
            key = (record.ceiling_source or "unknown", ceiling)
            worst[key] = max(worst.get(key, 0.0), record.gb_per_s / ceiling)
    return [
        f"{100 * share:.0f} % of {ceiling:.1f} GB/s ({source}) was measured, so this ceiling is wrong (the link was in "
        "a power-saving state when it was read, or a virtual machine reports it): ignore shares of it"
        for (source, ceiling), share in worst.items()
    ]


def checks(facts: Facts) -> tuple[int, int, int]:
    """Return the number of measured paths with corrupted data, the number without verification, and the total."""
    verified = [*(copy.verified for copy in facts.bandwidth), *(call.verified for call in facts.collectives)]
    return verified.count(False), verified.count(None), len(verified)
