"""Read what a run measured without the profiler: host times, input waits and the cost of recording."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import msgspec

from gpudiag.analysis.diagnosis.calibration import AS_RECORDED, BEYOND_CHANCE, MOST, SAME_AMOUNT, WARNING_PERCENT
from gpudiag.model.analysis import Validity
from gpudiag.model.run import RankRecord, RecordingCost, RunRecord, StepTimes, UnprofiledRank, UnprofiledSteps
from gpudiag.statistics import mean_of

_ON_CPU = "on a CPU the training thread does the work itself"
_NO_EVENTS = "this framework does not report when a device has finished a step"
_FETCHED_WITHIN = "the framework fetches the batch within the step's own work"
_NO_WORKERS = "no DataLoader worker process made a batch"


class UnprofiledInput(msgspec.Struct, frozen=True, kw_only=True):
    """The wait for input in unprofiled steps, in ms per step.

    Attributes:
        exposed_ms: time in which a device waited for input, the lower median over ranks.
        fetching_ms: time in which a training thread fetched batches, the mean over ranks.
    """

    exposed_ms: float
    fetching_ms: float

    def not_in_ms(self, recorded_ms: float) -> float:
        """Return the part of `exposed_ms` that recorded steps lack, in ms; 0 if they fetch for 3/4 of `fetching_ms`.

        Recorded steps may wait less for two reasons: recording slows the job, so that the loader keeps up, or the few
        recorded steps use batches that were made before recording.

        Worked example. In unprofiled steps, devices wait for 24 ms and threads fetch for 26 ms. In recorded steps,
        threads fetch for 6.5 ms (`recorded_ms`, the mean per step). Recorded steps lack 24 ms * (1 - 6.5 / 26) = 18 ms.
        """
        share = recorded_ms / self.fetching_ms if self.fetching_ms > 0 else 1.0
        return (1 - share) * self.exposed_ms if share < 1 - SAME_AMOUNT else 0.0


def unprofiled_ranks(run: RunRecord | None) -> tuple[UnprofiledRank, ...] | None:
    """Return the means of each rank's unprofiled steps; None if the run has no host times."""
    means = []
    for rank in _ranks(run):
        if rank.timed is None or rank.unprofiled is None or not rank.timed.host_ms:
            continue
        reasons = {}
        if rank.timed.input_ms is None:
            reasons["input_ms"] = _FETCHED_WITHIN
        if rank.timed.lead_ms is None:
            reasons["lead_ms"] = _ON_CPU if _on_cpu(rank) else _NO_EVENTS
        if rank.timed.loader is None:
            reasons["loader_ms"] = _NO_WORKERS
        means.append(
            UnprofiledRank(
                rank=rank.rank,
                step_ms=rank.unprofiled.mean_ms,
                input_ms=_mean(rank.timed.input_ms),
                host_ms=statistics.fmean(rank.timed.host_ms),
                lead_ms=_mean(rank.timed.lead_ms),
                loader_ms=loader_step_ms(rank.timed),
                steps=len(rank.timed.host_ms),
                reasons=reasons,
            )
        )
    return tuple(means) or None


def loader_step_ms(timed: UnprofiledSteps) -> float | None:
    """Return the time, in ms, that DataLoader workers need for one step's batches; None if unknown.

    Worked example. Each of two workers takes 100 ms for a batch. A step with one batch needs 50 ms; a step that
    accumulates two batches needs 100 ms.
    """
    made = timed.loader
    if made is None or not timed.host_ms:
        return None
    per_step = max(1, round(made.batches / len(timed.host_ms)))
    return per_step * made.batch_ms / made.workers


def loader_steps_ms(run: RunRecord | None) -> dict[int, float]:
    """Return `loader_step_ms` by rank, without ranks for which it is unknown."""
    hosts = {rank.rank: rank.timed for rank in _ranks(run) if rank.timed is not None}
    return {rank: ms for rank, host in hosts.items() if (ms := loader_step_ms(host)) is not None}


def fastest_host_ms(run: RunRecord | None) -> dict[int, float]:
    """Return rank → shortest time, in ms, in which the training thread enqueued a step.

    Waits within a step, mostly for a full launch queue, only lengthen the enqueuing. Such waits are shortest in the
    steps of `idle_host_ms`, which run before the unprofiled steps and begin with an idle device.
    """
    hosts = {rank.rank: rank.timed for rank in _ranks(run) if rank.timed is not None}
    return {rank: min((*host.host_ms, *host.idle_host_ms)) for rank, host in hosts.items() if host.host_ms}


def devices_set_pace(run: RunRecord | None) -> bool:
    """Return whether every host ran ahead by half a step (`MOST`) in most unprofiled steps; False if unknown."""
    hosts = [rank.timed for rank in _ranks(run)]
    return bool(hosts) and all(host is not None and _ran_ahead(host) for host in hosts)


def recording_cost(run: RunRecord | None) -> RecordingCost | None:
    """Return the slowest rank's step time unprofiled, in a kernel-only and in a full trace; None without traces."""
    ranks = _ranks(run)
    light = [_inner_mean(rank.light) for rank in ranks if rank.light is not None]
    full = [_inner_mean(rank.profiled) for rank in ranks if rank.profiled is not None]
    if not light and not full:
        return None
    return RecordingCost(
        unprofiled_ms=max((rank.unprofiled.mean_ms for rank in ranks if rank.unprofiled is not None), default=None),
        light_ms=max(light, default=None),
        full_ms=max(full, default=None),
    )


def recording_doubts(run: RunRecord | None) -> tuple[Validity, ...]:
    """Return a warning if the record of a rank states why the rank has no kernel-only trace."""
    notes = [rank.notes.get("no-light-recording") for rank in _ranks(run)]
    message = next((note for note in notes if note), None)
    return (Validity(code="no-light-recording", message=message),) if message else ()


def exposed_input_ms(rank: RankRecord) -> tuple[float, ...]:
    """Return how long the device waited for its batch in each unprofiled step, in ms; empty if unknown.

    While the host fetches, the device still has work for `lead_ms` from the previous step, so that only a longer fetch
    makes the device wait. The first step is left out, because the lead before it is unknown. On a CPU the training
    thread is the device and waits for the whole fetch.

    Worked example. The host is 5 ms ahead after it enqueued a step, and fetches the next batch for 8 ms. The device
    waits for 3 ms.
    """
    timed = rank.timed
    if timed is None or timed.input_ms is None:
        return ()
    if timed.lead_ms is not None:
        successive = pairwise(zip(timed.lead_ms, timed.input_ms, strict=False))  # without the first step
        return tuple(max(0.0, input_ms - lead_ms) for (lead_ms, _), (_, input_ms) in successive)
    return timed.input_ms if _on_cpu(rank) else ()


def exposed_input_by_rank(run: RunRecord | None) -> dict[int, tuple[float, ...]]:
    """Return `exposed_input_ms` by rank, for ranks on which at least two steps are known."""
    return {rank.rank: steps for rank in _ranks(run) if len(steps := exposed_input_ms(rank)) > 1}


def typical_rank(waits: Mapping[int, Sequence[float]]) -> int:
    """Return the rank whose mean wait is the lower median."""
    return sorted(waits, key=lambda rank: statistics.fmean(waits[rank]))[(len(waits) - 1) // 2]


def unprofiled_input(run: RunRecord | None) -> UnprofiledInput | None:
    """Return the wait for input in unprofiled steps; None if no rank's wait or not every rank's fetching is known."""
    ranks = [rank for rank in _ranks(run) if rank.timed is not None]
    waits = [statistics.fmean(steps) for steps in exposed_input_by_rank(run).values()]
    fetching = [statistics.fmean(rank.timed.input_ms) for rank in ranks if rank.timed and rank.timed.input_ms]
    if not waits or len(fetching) < len(ranks):
        return None
    return UnprofiledInput(exposed_ms=statistics.median_low(waits), fetching_ms=statistics.fmean(fetching))


def later_input_ms(run: RunRecord | None, ranks: Sequence[int]) -> float:
    """Return the largest excess of these ranks' input waits over the lower median of all ranks, in ms; 0 if unknown."""
    waits = {rank.rank: exposed_input_ms(rank) for rank in _ranks(run)}
    means = {rank: statistics.fmean(steps) for rank, steps in waits.items() if steps}
    if not means:
        return 0.0
    usual = statistics.median_low(means.values())
    return max((means[rank] - usual for rank in ranks if rank in means), default=0.0)


def input_ms_above_most(run: RunRecord | None) -> dict[int, float] | None:
    """Return rank → upper bound, in ms, of the time by which the rank's own input lengthened the unprofiled steps.

    The result is None without two ranks, if the step time or a rank's wait is unknown, or if neither bound applies. The
    lower of two bounds counts:

    - If most ranks' devices waited for input, the bound is the excess of the rank's wait over the usual wait, or 0 if
      the excess may be chance. If most devices did not wait for input, this bound does not apply, because a rank that
      waits is then a straggler.
    - If the speed of all ranks' workers is known, the bound is the step time minus the time in which the workers of the
      usual rank make a step's batches, because the step takes that time even without this rank's excess.

    Worked example. Each of two ranks has one worker, which takes 20.2 ms per batch, in steps of 20.5 ms. The worker of
    rank 1 runs 13 ms behind that of rank 0, so that rank 1 waits in every step and rank 0 in none. Rank 1's input
    lengthens the step by at most 20.5 - 20.2 = 0.3 ms.
    """
    ranks = _ranks(run)
    step_ms = max((rank.unprofiled.mean_ms for rank in ranks if rank.unprofiled is not None), default=0.0)
    waits = exposed_input_by_rank(run)
    if len(waits) < max(len(ranks), 2) or step_ms <= 0:
        return None
    usual = typical_rank(waits)
    bounds = []
    if 100 * statistics.fmean(waits[usual]) >= WARNING_PERCENT * step_ms:
        bounds.append({rank: _excess_ms(steps, waits[usual]) for rank, steps in waits.items()})
    paces = loader_steps_ms(run)
    if len(paces) == len(ranks):
        bounds.append(dict.fromkeys(paces, max(0.0, step_ms - statistics.median_low(paces.values()))))
    return {rank: min(bound[rank] for bound in bounds) for rank in waits} if bounds else None


def later_host_ms(run: RunRecord | None, ranks: Collection[int], late: Sequence[int]) -> float | None:
    """Return the largest excess of the late hosts' unprofiled steps over the lower median, in ms; None if unknown.

    Args:
        run: the record.
        ranks: the ranks present in the run; each must have unprofiled steps.
        late: the ranks that may be late.
    """
    timed = _hosts(run, ranks)
    if timed is None:
        return None
    means = {rank: statistics.fmean(host.host_ms) for rank, host in timed.items()}
    return max((means[rank] - statistics.median_low(means.values()) for rank in late if rank in means), default=0.0)


def alone_waited_for(
    run: RunRecord | None, ranks: Collection[int], late: Sequence[int], *, ahead_from: float = WARNING_PERCENT / 100
) -> bool:
    """Return whether only these hosts delayed most unprofiled steps, while the other hosts ran ahead.

    A host that runs ahead fills its device's launch queue and then waits as long as the device waits for other ranks.
    The steps of a host that runs ahead take as long as the steps of the host that delays all ranks, so that only the
    leads distinguish the hosts. Steps that the other hosts delayed are subtracted, because hosts that delay each other
    in turns are slow by chance.

    Worked example. Both hosts take 50 ms for each of 20 steps. One host runs ahead of its device by 45 ms. The other
    host never runs ahead, and delays the steps.

    Args:
        run: the record.
        ranks: the ranks present in the run; each must have unprofiled steps.
        late: the ranks that may be late.
        ahead_from: least lead, as a share of the step, of a host that runs ahead. With a lead of `MOST` of a step or
            more, the host time includes waiting; with less, it may be work.
    """
    timed = _hosts(run, ranks)
    if timed is None or any(host.lead_ms is None for host in timed.values()):
        return False
    steps = min(len(host.host_ms) for host in timed.values())
    ahead = {rank: [_is_ahead(host, step, share=ahead_from) for step in range(steps)] for rank, host in timed.items()}
    late_flags = [flags for rank, flags in ahead.items() if rank in late]
    other_flags = [flags for rank, flags in ahead.items() if rank not in late]
    count = 0
    for late_ahead, others_ahead in zip(zip(*late_flags, strict=True), zip(*other_flags, strict=True), strict=False):
        most_ahead = statistics.median_low(others_ahead)
        count += (most_ahead and not any(late_ahead)) - (all(late_ahead) and not most_ahead)
    return count > MOST * steps


def unprofiled_longer_ms(timed_ms: float | None, corrected_ms: float) -> float:
    """Return the excess of the unprofiled over the simulated step time, in ms; 0 if the excess is not unusual."""
    longer = (timed_ms or 0.0) - corrected_ms
    return longer if longer > AS_RECORDED * corrected_ms else 0.0


def _hosts(run: RunRecord | None, ranks: Collection[int]) -> dict[int, UnprofiledSteps] | None:
    """Return rank → its unprofiled steps; None if a rank's steps are missing or if there is only one rank."""
    hosts = {rank.rank: rank.timed for rank in _ranks(run) if rank.timed is not None and rank.rank in ranks}
    hosts = {rank: host for rank, host in hosts.items() if host.host_ms}
    return hosts if len(hosts) >= max(len(ranks), 2) else None


def _ranks(run: RunRecord | None) -> tuple[RankRecord, ...]:
    return () if run is None else run.ranks


def _ran_ahead(timed: UnprofiledSteps) -> bool:
    """Return whether the host ran ahead by `MOST` of a step in most steps."""
    steps = range(len(timed.host_ms))
    return timed.lead_ms is not None and sum(_is_ahead(timed, step, share=MOST) for step in steps) > MOST * len(steps)


def _is_ahead(timed: UnprofiledSteps, step: int, share: float) -> bool:
    """Return whether the host's lead after it enqueued a step was at least this share of the step."""
    return (timed.lead_ms or ())[step] >= share * timed.host_ms[step]


def _excess_ms(waits: Sequence[float], usual: Sequence[float]) -> float:
    """Return the mean excess of waits over the usual waits in the same steps; 0 if it may be chance."""
    mean = mean_of([wait_ms - usual_ms for wait_ms, usual_ms in zip(waits, usual, strict=False)])
    return mean.value if mean.value > BEYOND_CHANCE * mean.standard_error else 0.0


def _on_cpu(rank: RankRecord) -> bool:
    return rank.device.lower().startswith("cpu")


def _inner_mean(times: StepTimes) -> float:
    """Return the mean without the first and the last step, which the analysis also leaves out."""
    return statistics.fmean(times.step_ms[1:-1]) if len(times.step_ms) > 2 else times.mean_ms


def _mean(values: Sequence[float] | None) -> float | None:
    return statistics.fmean(values) if values else None
