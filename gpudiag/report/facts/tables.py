"""Measured figures arranged in tables and matrices, for the terminal and for the page alike."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from gpudiag.model.facts import QUEUED, Bandwidth, Collective, CollectiveFit, Facts, Latency

#: Transports in the order in which they are drawn, with the words for them.
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
#: The row of all GPUs copying at the same time.
AT_ONCE = "all at once"
#: Below this a collective's time says more, above it its bandwidth.
LATENCY_BOUND_BYTES = 1 << 20
#: No link carries more than its ceiling; the measurement itself is good to this.
_ABOVE = 1.03
#: Sizes that show a curve's shape; the rest is in the JSON.
_TELLING_SIZES = tuple(1 << power for power in (10, 13, 16, 18, 20, 22, 24, 25, 26, 28, 29))


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, its share of its ceiling (of the best in its table where there is none), and whether data arrived."""

    value: float
    share: float | None
    of_ceiling: bool = True
    corrupt: bool = False
    tip: str = ""


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """Figures by row and column; None where nothing was measured."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    note: str = ""
    by_column: bool = False
    """Columns are of different kinds, each with a ceiling of its own."""

    def cells(self) -> list[Cell]:
        """Every figure."""
        return [cell for _, row in self.rows for cell in row if cell is not None]


def gpu_number(place: str) -> int | None:
    """The index in `gpu:<i>`, None for any other place."""
    kind, _, number = place.partition(":")
    return int(number) if kind == "gpu" and number.isascii() and number.isdigit() and len(number) < 6 else None


def _cell(record: Bandwidth, best: float | None = None) -> Cell:
    """One record's figure; pageable copies stand beside the best GPU's, as the host's own copying bounds them."""
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


_HOST_COLUMNS = (
    ("pinned", "host_to_device", "one_way", "pinned →"),
    ("pinned", "device_to_host", "one_way", "pinned ←"),
    ("pinned", "host_to_device", "both_ways", "pinned ↔"),
    ("pageable", "host_to_device", "one_way", "pageable →"),
    ("pageable", "device_to_host", "one_way", "pageable ←"),
    ("pageable", "host_to_device", "both_ways", "pageable ↔"),
    ("device", "device_to_device", "one_way", "within"),
)


def host_matrix(facts: Facts) -> Matrix | None:
    """Copies between host and GPUs: a row per GPU and one for all at once; a column per memory and direction."""
    by_key: dict[tuple[str, str, str, str], Bandwidth] = {}
    for record in facts.bandwidth:
        if record.path in {"host_to_device", "device_to_host", "device_to_device"}:
            place = record.dst if record.path == "host_to_device" else record.src
            by_key[record.memory, record.path, record.direction, place] = record
    columns = [column for column in _HOST_COLUMNS if any(key[:3] == column[:3] for key in by_key)]
    if not columns:
        return None
    numbers = sorted({number for key in by_key if (number := gpu_number(key[3])) is not None})
    places = [(f"GPU {number}", f"gpu:{number}") for number in numbers]
    if any(key[3] == "all" for key in by_key):
        places.append((AT_ONCE, "all"))
    best: dict[tuple[str, str, str], float] = {}
    for key, record in by_key.items():
        if key[3] != "all":
            best[key[:3]] = max(best.get(key[:3], 0.0), record.gb_per_s)
    rows = []
    for label, place in places:
        records = [by_key.get((*column[:3], place)) for column in columns]
        cells = tuple(
            None if record is None else _cell(record, None if place == "all" else best.get(column[:3]))
            for record, column in zip(records, columns, strict=True)
        )
        rows.append((label, cells))
    return Matrix(
        title="Between host and GPU, GB/s",
        columns=tuple(column[3] for column in columns),
        rows=tuple(rows),
        note="→ to the GPU, ← to the host, ↔ both ways at once (sum); within: a copy inside the GPU, counted once",
        by_column=True,
    )


def copy_matrices(facts: Facts) -> list[Matrix]:
    """All of copies: between host and GPUs, then between GPUs."""
    host = host_matrix(facts)
    return [*([] if host is None else [host]), *peer_matrices(facts)]


def peer_matrices(facts: Facts) -> list[Matrix]:
    """Copies between GPUs, from row to column: direct one way by each side, both ways, and through the host."""
    wanted = (
        ("Direct, one way, issued by the receiver (read)", True, "one_way", "dst"),
        ("Direct, one way, issued by the sender (write)", True, "one_way", "src"),
        ("Direct, both ways at once (sum)", True, "both_ways", "dst"),
        ("Peer access off, one way", False, "one_way", None),
        ("Peer access off, both ways at once (sum)", False, "both_ways", None),
    )
    matrices = []
    for title, access, direction, initiator in wanted:
        records = [
            record
            for record in facts.bandwidth
            if record.path == "peer"
            and bool(record.peer_access) == access
            and record.direction == direction
            and (initiator is None or record.initiator in {initiator, None})
        ]
        if records:
            matrices.append(_square(f"{title}, GB/s", records, symmetric=direction == "both_ways"))
    return matrices


def _square(title: str, records: Sequence[Bandwidth], *, symmetric: bool) -> Matrix:
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
    """What, and median, least and most of its latency in µs over all GPUs or pairs."""
    groups: dict[str, list[float]] = {}
    for measured in facts.latency:
        groups.setdefault(_latency_kind(measured), []).append(measured.time_us)
    return [(what, statistics.median(times), min(times), max(times)) for what, times in groups.items()]


def _latency_kind(measured: Latency) -> str:
    between = measured.src != "host" and measured.dst not in {"host", measured.src}
    access = "" if not between or measured.peer_access else ", peer access off"
    if measured.kind == "small_copy":
        where = "GPU to GPU" if between else "host to GPU" if measured.src == "host" else "GPU to host"
        return f"copy of 16 bytes, {where}{access}"
    where = "another GPU's memory" if between else "host memory" if measured.dst == "host" else "its own memory"
    return f"dependent load from {where}"


def strategies_of(names: Iterable[str]) -> list[str]:
    """Transports in their usual order, unknown ones last."""
    present = list(dict.fromkeys(names))
    return [name for name in STRATEGIES if name in present] + [name for name in present if name not in STRATEGIES]


def collective_matrix(facts: Facts) -> Matrix | None:
    """All-reduce by size and transport: µs below 1 MiB, bus bandwidth in GB/s from there on; telling sizes only."""
    by_key = {(measured.bytes, measured.strategy): measured for measured in facts.collectives}
    if not by_key:
        return None
    names = strategies_of(name for _, name in by_key)
    every = sorted({size for size, _ in by_key})
    sizes = [size for size in every if size in _TELLING_SIZES] or every
    rows = []
    for size in sizes:
        row = [by_key.get((size, name)) for name in names]
        slow = size < LATENCY_BOUND_BYTES
        # Queued beside queued: the GPUs alone always take less than launching does.
        values: dict[bool, list[float]] = {True: [], False: []}
        for measured in filter(None, row):
            values[measured.strategy.endswith(QUEUED)].append(_shown(measured, slow=slow))
        cells: list[Cell | None] = []
        for record in row:
            if record is None:
                cells.append(None)
                continue
            value, beside = _shown(record, slow=slow), values[record.strategy.endswith(QUEUED)]
            share = min(beside) / value if slow else value / max(beside)
            tip = f"{record.time_us:.1f} µs, bus bandwidth {record.busbw_gb_per_s:.2f} GB/s"
            cells.append(Cell(value=value, share=share, of_ceiling=False, corrupt=record.verified is False, tip=tip))
        rows.append((f"{binary_size(size)} {'µs' if slow else 'GB/s'}", tuple(cells)))
    ranks = "/".join(str(count) for count in sorted({measured.ranks for measured in facts.collectives}))
    return Matrix(
        title=f"All-reduce over {ranks} ranks: time below 1 MiB, bus bandwidth from there on",
        columns=tuple(STRATEGIES.get(name, name) for name in names),
        rows=tuple(rows),
    )


def _shown(measured: Collective, *, slow: bool) -> float:
    return measured.time_us if slow else measured.busbw_gb_per_s


def fits(facts: Facts) -> list[tuple[str, CollectiveFit]]:
    """Each transport's latency and bandwidth, by the words for it, in their usual order."""
    by_name = {fit.strategy: fit for fit in facts.collective_fits}
    return [(STRATEGIES.get(name, name), by_name[name]) for name in strategies_of(by_name)]


def binary_size(size: int) -> str:
    """A power of two as nccl-tests names it: `64 KiB`, `512 MiB`."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):g} {unit}"
    return f"{size} B"


def host_memory_rows(facts: Facts) -> list[tuple[str, Bandwidth]]:
    """NUMA nodes and pairs of them."""
    return [
        (record.src if record.src == record.dst else f"{record.src} → {record.dst}", record)
        for record in facts.bandwidth
        if record.path == "host_memory"
    ]


def ceiling_sources(facts: Facts) -> list[tuple[str, float]]:
    """Distinct origins of one-way ceilings that are known, with the ceiling; the sums made of them say nothing new."""
    ceilings: dict[str, float | None] = {}
    for record in facts.bandwidth:
        if record.ceiling_source and record.direction == "one_way" and "all" not in {record.src, record.dst}:
            ceilings.setdefault(record.ceiling_source, record.ceiling_gb_per_s)
    return [(source, ceiling) for source, ceiling in ceilings.items() if ceiling is not None]


def above_ceilings(facts: Facts) -> list[str]:
    """What was measured above its ceiling, which is then not the link's: a line for each ceiling, with the worst."""
    worst: dict[tuple[str, float], float] = {}
    for record in facts.bandwidth:
        ceiling = record.ceiling_gb_per_s
        if ceiling and record.gb_per_s > _ABOVE * ceiling:
            key = (record.ceiling_source or "unknown", ceiling)
            worst[key] = max(worst.get(key, 0.0), record.gb_per_s / ceiling)
    return [
        f"{100 * share:.0f} % of {ceiling:.1f} GB/s ({source}) was measured: this is not the link's ceiling (it "
        "slept when it was read, or a virtual machine makes it up), and no share of it says anything"
        for (source, ceiling), share in worst.items()
    ]


def checks(facts: Facts) -> tuple[int, int, int]:
    """On how many measured paths data was corrupted, on how many it was not compared, and how many there are."""
    verified = [*(copy.verified for copy in facts.bandwidth), *(call.verified for call in facts.collectives)]
    return verified.count(False), verified.count(None), len(verified)
