"""Read what a run measured without the profiler: host time in each step, and what recording costs."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from itertools import pairwise

import msgspec

from gpudiag.analysis.diagnosis.calibration import AS_RECORDED, BEYOND_CHANCE, MOST, SAME_AMOUNT, WARNING_PERCENT
from gpudiag.model.analysis import Validity
from gpudiag.model.run import RankRecord, RecordingCost, RunRecord, StepTimes, UnprofiledRank, UnprofiledSteps
from gpudiag.statistics import mean_of

_ON_CPU = "on a CPU the training thread does the work itself"
_NO_EVENTS = "this framework does not tell when a device has finished a step"
_FETCHED_WITHIN = "the framework fetches the batch within the step's own work"
_NO_WORKERS = "no worker process of a DataLoader was seen to make a batch"


class UnprofiledInput(msgspec.Struct, frozen=True, kw_only=True):
    """The wait for input in unprofiled steps, in ms of a step.

    Attributes:
        exposed_ms: how long devices waited for it: the lower median of the ranks.
        fetching_ms: how long threads fetched: the mean of the ranks.
    """

    exposed_ms: float
    fetching_ms: float

    def not_in_ms(self, recorded_ms: float) -> float:
        """Return the part of the wait, in ms, that recorded steps lack if they fetch for so long; 0 if they have most.

        Recording slows the job, and its loader keeps up; or the few recorded steps find batches that were made before.

        Worked example. Devices wait for 24 ms a step, threads fetch for 26, and in recorded ones for 6.5: 18 ms are
        not in them.
        """
        share = recorded_ms / self.fetching_ms if self.fetching_ms > 0 else 1.0
        return (1 - share) * self.exposed_ms if share < 1 - SAME_AMOUNT else 0.0


def unprofiled_ranks(run: RunRecord | None) -> tuple[UnprofiledRank, ...] | None:
    """Return the means of each rank's unprofiled steps; None if the run noted no host times."""
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

    Worked example. Two workers take 100 ms for a batch each, and a step takes one batch: 50 ms. Where batches of two
    steps are accumulated, it takes two: 100 ms.
    """
    made = timed.loader
    if made is None or not timed.host_ms:
        return None
    per_step = max(1, round(made.batches / len(timed.host_ms)))
    return per_step * made.batch_ms / made.workers


def loader_steps_ms(run: RunRecord | None) -> dict[int, float]:
    """Return `loader_step_ms` by rank, where it is known."""
    hosts = {rank.rank: rank.timed for rank in _ranks(run) if rank.timed is not None}
    return {rank: ms for rank, host in hosts.items() if (ms := loader_step_ms(host)) is not None}


def fastest_host_ms(run: RunRecord | None) -> dict[int, float]:
    """Return by rank the least time, in ms, in which its training thread queued a step.

    Waits within a step, above all for room in the launch queue, only add to a thread's work. It waits least in the
    steps before the unprofiled ones, the first of which found its device idle.
    """
    hosts = {rank.rank: rank.timed for rank in _ranks(run) if rank.timed is not None}
    return {rank: min((*host.host_ms, *host.idle_host_ms)) for rank, host in hosts.items() if host.host_ms}


def devices_set_pace(run: RunRecord | None) -> bool:
    """Return whether every host ran ahead by `MOST` of the step in most unprofiled steps; False if unknown."""
    hosts = [rank.timed for rank in _ranks(run)]
    return bool(hosts) and all(host is not None and _was_ahead(host) for host in hosts)


def recording_cost(run: RunRecord | None) -> RecordingCost | None:
    """Return a step's time unprofiled, in a kernel-only trace, and in a full trace; None without traces."""
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
    """Warn that there is no kernel-only trace, with the reason, if a rank says so."""
    said = [rank.notes.get("no-light-recording") for rank in _ranks(run)]
    message = next((words for words in said if words), None)
    return (Validity(code="no-light-recording", message=message),) if message else ()


def exposed_input_ms(rank: RankRecord) -> tuple[float, ...]:
    """Return how long the device waited for its batch in each unprofiled step, in ms; empty if unknown.

    The device still works for `lead_ms` of the step before while the host fetches: only what is longer is waited for.
    On a CPU the training thread is the device, and waits for all of it.

    Worked example. The host is 5 ms ahead when it has queued a step, and the next batch takes it 8 ms: the device
    stands idle for 3 ms.
    """
    timed = rank.timed
    if timed is None or timed.input_ms is None:
        return ()
    if timed.lead_ms is not None:
        after = pairwise(zip(timed.lead_ms, timed.input_ms, strict=False))
        return tuple(max(0.0, input_ms - lead_ms) for (lead_ms, _), (_, input_ms) in after)
    return timed.input_ms if _on_cpu(rank) else ()


def unprofiled_input(run: RunRecord | None) -> UnprofiledInput | None:
    """Return the wait for input in unprofiled steps, the lower median of the ranks; None if unknown."""
    ranks = [rank for rank in _ranks(run) if rank.timed is not None]
    waits = [statistics.fmean(steps) for rank in ranks if len(steps := exposed_input_ms(rank)) > 1]
    fetching = [statistics.fmean(rank.timed.input_ms) for rank in ranks if rank.timed and rank.timed.input_ms]
    if not waits or len(fetching) < len(ranks):
        return None
    return UnprofiledInput(exposed_ms=statistics.median_low(waits), fetching_ms=statistics.fmean(fetching))


def later_input_ms(run: RunRecord | None, ranks: Sequence[int]) -> float:
    """Return how much longer these devices waited for input in unprofiled steps than most, in ms; 0 if unknown."""
    waits = {rank.rank: exposed_input_ms(rank) for rank in _ranks(run)}
    means = {rank: statistics.fmean(steps) for rank, steps in waits.items() if steps}
    if not means:
        return 0.0
    usual = statistics.median_low(means.values())
    return max((means[rank] - usual for rank in ranks if rank in means), default=0.0)


def input_ms_above_most(run: RunRecord | None) -> dict[int, float] | None:
    """Return by rank, in ms, how much longer than most ranks' its input can have made the unprofiled steps.

    Two things bound it, each where it is known; None where neither is.

    - Where most ranks' devices waited for input, it is what this one waited longer, as far as that is more than chance.
      (Where most wait for none, one that does is late, however few of its steps are recorded.)
    - Where the workers of all loaders were seen, it is what the step took longer than most ranks' workers need for its
      batches: without this rank's the step would take as long as that.

    Worked example. Two ranks have one worker each, which takes 20.2 ms for a batch, in steps of 20.5 ms. The worker of
    rank 1 has come to be the later one by 13 ms: it is rank 1 that waits in every step, and rank 0 never does. At most
    0.3 ms of that is rank 1's.
    """
    ranks = _ranks(run)
    step_ms = max((rank.unprofiled.mean_ms for rank in ranks if rank.unprofiled is not None), default=0.0)
    waits = {rank.rank: steps for rank in ranks if len(steps := exposed_input_ms(rank)) > 1}
    if len(waits) < max(len(ranks), 2) or step_ms <= 0:
        return None
    usual = sorted(waits, key=lambda rank: statistics.fmean(waits[rank]))[(len(waits) - 1) // 2]
    bounds = []
    if 100 * statistics.fmean(waits[usual]) >= WARNING_PERCENT * step_ms:
        bounds.append({rank: _more_ms(steps, waits[usual]) for rank, steps in waits.items()})
    paces = loader_steps_ms(run)
    if len(paces) == len(ranks):
        bounds.append(dict.fromkeys(paces, max(0.0, step_ms - statistics.median_low(paces.values()))))
    return {rank: min(bound[rank] for bound in bounds) for rank in waits} if bounds else None


def later_host_ms(run: RunRecord | None, ranks: Collection[int], late: Sequence[int]) -> float | None:
    """Return how much longer these hosts took for an unprofiled step than most, in ms; None if unknown.

    Args:
        run: the record.
        ranks: the ranks present in the run; each must have unprofiled steps.
        late: the ranks in question.
    """
    timed = _hosts(run, ranks)
    if timed is None:
        return None
    means = {rank: statistics.fmean(one.host_ms) for rank, one in timed.items()}
    return max((means[rank] - statistics.median_low(means.values()) for rank in late if rank in means), default=0.0)


def alone_waited_for(
    run: RunRecord | None, ranks: Collection[int], late: Sequence[int], *, ahead_from: float = WARNING_PERCENT / 100
) -> bool:
    """Return whether most unprofiled steps waited for these hosts alone, while the other hosts ran ahead.

    A host that runs ahead fills its device's launch queue and then waits there as long as the device waits for other
    ranks. It takes as long for a step as the host that all wait for, so that only their leads tell them apart. Steps in
    which the others were waited for count against it, because hosts that take turns are slow by chance.

    Worked example. Both hosts take 50 ms for each of 20 steps. One runs ahead of its device by 45 ms and the other
    never does: the other one is waited for.

    Args:
        run: the record.
        ranks: the ranks present in the run; each must have unprofiled steps.
        late: the ranks in question.
        ahead_from: least lead, as a share of the step, with which a host counts as ahead. With a lead of `MOST` of a
            step its host time says nothing; with less, it may be work.
    """
    timed = _hosts(run, ranks)
    if timed is None or any(host.lead_ms is None for host in timed.values()):
        return False
    steps = min(len(host.host_ms) for host in timed.values())
    ahead = {rank: [_is_ahead(host, step, share=ahead_from) for step in range(steps)] for rank, host in timed.items()}
    asked = [flags for rank, flags in ahead.items() if rank in late]
    others = [flags for rank, flags in ahead.items() if rank not in late]
    count = 0
    for late_ahead, others_ahead in zip(zip(*asked, strict=True), zip(*others, strict=True), strict=False):
        most_ahead = statistics.median_low(others_ahead)
        count += (most_ahead and not any(late_ahead)) - (all(late_ahead) and not most_ahead)
    return count > MOST * steps


def unprofiled_longer_ms(timed_ms: float | None, corrected_ms: float) -> float:
    """Return how much longer unprofiled steps took than simulated ones, in ms; 0 if within the usual difference."""
    longer = (timed_ms or 0.0) - corrected_ms
    return longer if longer > AS_RECORDED * corrected_ms else 0.0


def _hosts(run: RunRecord | None, ranks: Collection[int]) -> dict[int, UnprofiledSteps] | None:
    """Return the unprofiled host steps of these ranks; None if a rank is missing or there is only one."""
    hosts = {rank.rank: rank.timed for rank in _ranks(run) if rank.timed is not None and rank.rank in ranks}
    hosts = {rank: host for rank, host in hosts.items() if host.host_ms}
    return hosts if len(hosts) >= max(len(ranks), 2) else None


def _ranks(run: RunRecord | None) -> tuple[RankRecord, ...]:
    return () if run is None else run.ranks


def _was_ahead(timed: UnprofiledSteps) -> bool:
    """Return whether the host ran ahead by `MOST` of the step in most steps."""
    steps = range(len(timed.host_ms))
    return timed.lead_ms is not None and sum(_is_ahead(timed, step, share=MOST) for step in steps) > MOST * len(steps)


def _is_ahead(timed: UnprofiledSteps, step: int, share: float) -> bool:
    """Return whether the host had queued the step with a lead of this share of it or more."""
    return (timed.lead_ms or ())[step] >= share * timed.host_ms[step]


def _more_ms(steps: Sequence[float], usual: Sequence[float]) -> float:
    """Return the mean excess over the other steps at the same time if it is more than chance, else 0."""
    more = [one - other for one, other in zip(steps, usual, strict=False)]
    mean = mean_of(more)
    return mean.value if mean.value > BEYOND_CHANCE * mean.standard_error else 0.0


def _on_cpu(rank: RankRecord) -> bool:
    return rank.device.lower().startswith("cpu")


def _inner_mean(times: StepTimes) -> float:
    """Return the mean without the first and the last step, which the analysis leaves out too."""
    return statistics.fmean(times.step_ms[1:-1]) if len(times.step_ms) > 2 else times.mean_ms


def _mean(values: Sequence[float] | None) -> float | None:
    return statistics.fmean(values) if values else None
