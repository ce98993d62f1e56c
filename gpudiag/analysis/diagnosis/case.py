"""Provide the facts that every rule reads, each computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpudiag.analysis.diagnosis.simulation.fit_profiler_cost import build_what_if
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.unprofiled_steps import (
    devices_set_pace,
    fastest_host_ms,
    input_ms_above_most,
    unprofiled_input,
)
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.attribution import Attribution
from gpudiag.model.facts import Facts
from gpudiag.model.run import RunRecord
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, Timeline
from gpudiag.units import milliseconds


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job: its timeline and attribution, and the facts of its machine and run.

    Attributes:
        timeline: device tracks of all ranks on one clock.
        attribution: buckets of each track's steps.
        facts: measurements of the machine, if known.
        run: the record of the run, if gpudiag recorded it.
        outlier_steps: message about outlier steps; empty without any.
    """

    timeline: Timeline
    attribution: Attribution
    facts: Facts | None = None
    run: RunRecord | None = None
    outlier_steps: str = ""

    @cached_property
    def what_if(self) -> WhatIf | None:
        """Return the what-if simulation, or None if the traces hold nothing to simulate."""
        return build_what_if(
            self.timeline,
            self.unprofiled_ms,
            host_ms=fastest_host_ms(self.run),
            devices_set_pace=devices_set_pace(self.run),
            later_input_ms=input_ms_above_most(self.run),
            unprofiled_input=unprofiled_input(self.run),
            recorded_ms=self.slowest_ms,
        )

    @cached_property
    def step_ms(self) -> float:
        """Return the mean recorded step over all devices, in ms."""
        means = [float(track.step_ns.mean()) for track in self.attribution.tracks if len(track.step_ns)]
        return milliseconds(float(np.mean(means))) if means else 0.0

    @cached_property
    def slowest_ms(self) -> float:
        """Return the mean recorded step of the slowest device, in ms."""
        return milliseconds(
            max((float(track.step_ns.mean()) for track in self.attribution.tracks if len(track.step_ns)), default=0)
        )

    @cached_property
    def steps(self) -> int:
        """Return the number of analysed steps."""
        return min((len(track.window_steps) for track in self.timeline.tracks), default=0)

    @property
    def tracks(self) -> tuple[DeviceTrack, ...]:
        """Return the device tracks."""
        return self.timeline.tracks

    def exposed_ms(self, *buckets: str) -> dict[int, float]:
        """Return the exposed ms per step in these buckets by rank; of several devices, the one with most."""
        columns = [BUCKETS.index(bucket) for bucket in buckets]
        exposed: dict[int, float] = {}
        for track in self.attribution.tracks:
            if len(track.buckets_ns):
                value = milliseconds(track.buckets_ns[:, columns].sum(axis=1).mean())
                exposed[track.rank] = max(exposed.get(track.rank, 0.0), value)
        return exposed

    @cached_property
    def unprofiled_ms(self) -> float | None:
        """Return the unprofiled step of the slowest rank, in ms; None if the run measured none."""
        if self.run is None:
            return None
        return max((rank.unprofiled.mean_ms for rank in self.run.ranks if rank.unprofiled is not None), default=None)

    def unseen_share(self) -> float:
        """Return the share of transfer time in collectives with ranks whose traces are missing."""
        tables = [track.collectives for track in self.tracks]
        instance = np.concatenate([table.instance for table in tables])
        ranks = [np.array([kind[2] or self.timeline.world_size for kind in table.kinds], np.int64) for table in tables]
        expected = np.concatenate([sizes[table.kind] for sizes, table in zip(ranks, tables, strict=True)])
        time = np.concatenate([table.end - np.maximum(table.last_arrival, table.start) for table in tables])
        if not time.sum():
            return 0.0
        _, index, present = np.unique(instance, return_inverse=True, return_counts=True)
        incomplete = (instance == UNKNOWN) | (present[index] < expected)
        return float(time[incomplete].sum() / time.sum())

    def one_of_many(self) -> bool:
        """Return whether the traces are of one rank of a job with several."""
        return len(self.timeline.ranks_present) == 1 and len(self.tracks) == 1 and self.timeline.world_size > 1
