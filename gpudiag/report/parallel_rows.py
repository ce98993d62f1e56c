"""Make the rows of a report on parallelism: communication by role, stages, positions of ranks, passes of one step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

import msgspec

from gpudiag.model.analysis import Analysis
from gpudiag.model.parallelism import ROLES, GroupRole, Imbalance, Parallelism, PassOfStage, PipelineShape, RankPlace
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.rank_rows import OVERLAPPED, duration

TRAFFIC_HEADING = "Communication by role"
STAGES_HEADING = "Pipeline stages"
RANKS_HEADING = "Ranks in the grid"
CALLS = "calls per step"
TRAFFIC_NOTE = "Times per step, on the rank with most."
STAGE_COLUMNS = ("stage", "ranks", "compute ms", "to mean", "wait ms", "slowest rank", "to its peers")
#: If imbalance costs less than this share of the step, its causes are not reported.
_LEAST_SHARE = 0.01
#: Causes of imbalance in words.
IMBALANCE_CAUSES = {
    "rank": "slow ranks",
    "stage": "uneven stages",
    "sequence": "uneven sequences",
    "experts": "uneven experts",
}
#: Maximum numbers of rows and of operations in a cell. Real jobs have fewer roles and stages, but a hostile file may
#: have more.
_MOST_ROLES = 16
_MOST_OPERATIONS = 6
_MOST_STAGES = 64
_MOST_PASSES = 1024
_LONGEST_NAME = 24
#: Words for operations whose names are too short for a report.
_OPERATIONS = {"recv": "receive", "send_recv": "send with receive"}


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Passes of one rank of a stage in the shown step, in order of time."""

    stage: int
    rank: int
    passes: tuple[PassOfStage, ...]


def traffic_columns(parallelism: Parallelism) -> dict[str, list[str]]:
    """Return the cells of each column by heading, one cell per role. `data` is omitted if the traces have no sizes."""
    shown = parallelism.traffic[:_MOST_ROLES]
    most = max((duration(ms) for role in shown for ms in (role.transfer_ms, role.wait_ms, role.hidden_ms)), default=0.0)

    def times(values: Iterable[float]) -> list[str]:
        return [figures.milliseconds(duration(ms), beside=most) for ms in values]

    columns: dict[str, list[str]] = {
        "role": [traffic.role for traffic in shown],
        "size": [_known(parallelism.sizes.get(traffic.role)) for traffic in shown],
        "transfer ms": times(traffic.transfer_ms for traffic in shown),
        "wait ms": times(traffic.wait_ms for traffic in shown),
        f"{OVERLAPPED} ms": times(traffic.hidden_ms for traffic in shown),
        "data": [figures.size(traffic.size_bytes) for traffic in shown],
        CALLS: [calls(traffic.operations) for traffic in shown],
    }
    if set(columns["data"]) == {figures.UNKNOWN}:
        del columns["data"]
    return columns


def calls(operations: Mapping[str, float]) -> str:
    """Return the calls per step of each operation in words, most frequent operation first.

    >>> calls({"all_gather": 1.0, "all_reduce": 49.0, "recv": 2.5})
    '49 all-reduces, 2.5 receives, 1 all-gather'
    """
    ordered = sorted(operations.items(), key=lambda item: -duration(item[1]))
    words = []
    for operation, per_step in ordered[:_MOST_OPERATIONS]:
        name = _OPERATIONS.get(operation, one_line(operation)[:_LONGEST_NAME].replace("_", "-"))
        count = figures.count(duration(per_step))
        words.append(f"{count} {name}{'s' * (count != '1')}")
    more = len(ordered) - _MOST_OPERATIONS
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def stage_rows(analysis: Analysis, parallelism: Parallelism) -> list[tuple[str, ...]]:
    """Return the cells of `STAGE_COLUMNS` for each stage.

    `to mean` is (compute of the stage) / (mean over stages). `to its peers` is (compute of the slowest rank) / (mean
    over the ranks of its stage). The times of compute and waiting are means over the ranks of the stage.
    """
    stages: dict[int, list[RankPlace]] = defaultdict(list)
    for place in parallelism.ranks:
        stages[place.position.get("pipeline", 0)].append(place)
    waits = {device.rank: device.buckets_ms.get("communication_wait", 0.0) for device in analysis.devices}
    compute = {stage: mean(duration(place.compute_ms) for place in places) for stage, places in stages.items()}
    middle, longest = mean(compute.values()) if compute else 0.0, max(compute.values(), default=0.0)
    rows: list[tuple[str, ...]] = []
    for stage, places in sorted(stages.items())[:_MOST_STAGES]:
        slowest = max(places, key=lambda place: duration(place.relative))
        waiting = mean(duration(waits.get(place.rank, 0.0)) for place in places)
        alone = len(places) == 1
        rows.append(
            (
                str(stage),
                _ranks([place.rank for place in places]),
                figures.milliseconds(compute[stage], beside=longest),
                _ratio(compute[stage] / middle if middle else math.nan),
                figures.milliseconds(waiting, beside=longest),
                str(slowest.rank),
                figures.UNKNOWN if alone else _ratio(slowest.relative),
            )
        )
    return rows


def rank_columns(parallelism: Parallelism) -> tuple[str, ...]:
    """Return the headings of `rank_rows`: rank, position in the group of each role, compute, and its ratio to peers."""
    return ("rank", *_roles(parallelism), "compute ms", "to its peers")


def rank_rows(parallelism: Parallelism, most: int) -> list[tuple[str, ...]]:
    """Return the cells of `rank_columns` for the first `most` ranks."""
    longest = max((duration(place.compute_ms) for place in parallelism.ranks), default=0.0)
    return [
        (
            str(place.rank),
            *(_known(place.position.get(role)) for role in _roles(parallelism)),
            figures.milliseconds(duration(place.compute_ms), beside=longest),
            _ratio(place.relative),
        )
        for place in parallelism.ranks[:most]
    ]


def _roles(parallelism: Parallelism) -> list[GroupRole]:
    return [role for role in ROLES if role in parallelism.sizes]


def _ranks(ranks: Sequence[int]) -> str:
    words = figures.ranks(ranks).partition(" ")[2]
    return words if len(words) <= _LONGEST_NAME else f"{ranks[0]}, {ranks[1]} … {ranks[-1]} ({len(ranks)})"


def _known(index: int | None) -> str:
    return figures.UNKNOWN if index is None else str(index)


def _ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) and 0 <= value < 1e6 else figures.UNKNOWN


def summary_lines(parallelism: Parallelism) -> list[str]:
    """Return a sentence about the bubble and one about the imbalance, if they are known."""
    pipeline, imbalance = parallelism.pipeline, parallelism.imbalance
    bubble = [] if pipeline is None else [bubble_line(pipeline)]
    return bubble if imbalance is None else [*bubble, imbalance_line(imbalance)]


def bubble_line(pipeline: PipelineShape) -> str:
    """Return a sentence with the simulated bubble, and with the share of the step that the schedule's formula gives.

    The formula has p stages, m microbatches, and v chunks of the model per stage.
    """
    setting = f"{pipeline.stages} stages and {pipeline.microbatches} microbatches"
    formula = "(p-1)/(m+p-1)"
    if pipeline.chunks > 1:
        setting = f"{pipeline.stages} stages of {pipeline.chunks} chunks each and {pipeline.microbatches} microbatches"
        formula = "(p-1)/(v·m+p-1)"
    theory = f"{formula} gives {duration(pipeline.theoretical_percent):.1f} % for {setting}"
    if pipeline.bubble_ms is None or pipeline.bubble_percent is None:
        return f"Bubble: not simulated; {theory}."
    bubble = f"{figures.milliseconds(duration(pipeline.bubble_ms))} ms per step and stage"
    share = f"{duration(pipeline.bubble_percent):.1f} % of a step in which ranks and stages compute equally long"
    return f"Bubble: {bubble}, {share}; {theory}."


def imbalance_line(imbalance: Imbalance) -> str:
    """Return a sentence with the cost of unequal compute, in total and for each cause alone."""
    ideal_ms = duration(imbalance.ideal_ms)
    lost_ms = max(duration(imbalance.slowdown) - 1, 0.0) * ideal_ms  # `slowdown` is (step time) / (ideal step time)
    step_ms = ideal_ms + lost_ms
    if lost_ms < _LEAST_SHARE * step_ms:
        return "Imbalance: costs less than 1 % of a step."
    saved = {
        IMBALANCE_CAUSES.get(cause, one_line(cause)): figures.milliseconds(duration(effect.saved_ms), beside=step_ms)
        for cause, effect in imbalance.by.items()
    }
    causes = [f"{words} {saved_ms} ms" for words, saved_ms in saved.items()]
    alone = f" ({', '.join(causes)}, each removed alone)" if causes else ""
    lost = figures.milliseconds(lost_ms, beside=step_ms)
    ideal = figures.milliseconds(ideal_ms, beside=step_ms)
    return f"Imbalance: {lost} ms of a step{alone}; a step without it takes {ideal} ms."


def passes_by_stage(pipeline: PipelineShape) -> tuple[list[StageRow], float]:
    """Return the valid passes of each stage and rank, and the time in ms at which the last pass ends."""
    rows: dict[tuple[int, int], list[PassOfStage]] = defaultdict(list)
    for pass_ in pipeline.passes:
        if 0 <= pass_.start_ms < pass_.end_ms < math.inf:
            rows[pass_.stage, pass_.rank].append(pass_)
    kept = [
        StageRow(stage=stage, rank=rank, passes=tuple(sorted(passes, key=lambda pass_: pass_.start_ms)[:_MOST_PASSES]))
        for (stage, rank), passes in sorted(rows.items())[:_MOST_STAGES]
    ]
    return kept, max((pass_.end_ms for row in kept for pass_ in row.passes), default=0.0)


def shown_step(rows: Iterable[StageRow], length_ms: float) -> str:
    """Return the heading above the passes: the time from the first to the last pass, and the ranks."""
    ranks = figures.ranks(row.rank for row in rows)
    return f"One step by microbatch, {figures.milliseconds(length_ms)} ms from first to last pass, of {ranks}"
