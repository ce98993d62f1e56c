"""Measure one rank in all phases, and keep its record on disk up to date. Rank 0 also writes the run's record."""

from __future__ import annotations

import logging
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.model.run import (
    OWN_STRATEGY,
    ModelRecord,
    ParallelLayout,
    RankRecord,
    RunRecord,
    RunStatus,
    StepsFound,
    UnprofiledSteps,
)
from gpudiag.model.structs import msgspec
from gpudiag.training.session import record
from gpudiag.training.session.agreement import Agreement
from gpudiag.training.session.line_log import LineLog, write_lines
from gpudiag.training.session.phases import Phases
from gpudiag.training.session.position import ClusterPosition, current_position, script_name
from gpudiag.training.session.progress import ProgressSender
from gpudiag.training.session.step_counts import PhaseSettings

if TYPE_CHECKING:
    from gpudiag.training.session.runtime import LoaderWatch, Runtime

logger = logging.getLogger("gpudiag")

#: Error in `run.json` until the outcome is known.
_UNFINISHED = "the run did not finish"

#: Seconds that rank 0 waits at the end for the other ranks' records.
_WAIT_S = 60.0
#: Seconds that rank 0 waits for the other ranks' records after a failure.
_WAIT_AFTER_FAILURE_S = 1.0


@dataclass(kw_only=True)
class RunDescription:
    """The part of the run's record that describes the training. The fields are those of `RunRecord`."""

    command: tuple[str, ...]
    workload: str = field(default_factory=script_name)
    strategy: str = OWN_STRATEGY
    batch_size: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    model: ModelRecord | None = None
    steps_found: StepsFound | None = None
    parallel: ParallelLayout | None = None


class RankMeasurement:
    """Measure the ranks of this process, one rank per device.

    Call `open`, then `begin` before the first step, `advance` before each step, and finally `close`.

    Attributes:
        run: description of the training for the run's record.
        phases: the phases of the measurement; None before `begin`.
        error: reason why the measurement failed; None if it did not fail.
        over: True if all phases have ended or failed.
        clock, agreement: the clock and the agreement of `phases`; set by `begin`.
    """

    clock: Any
    agreement: Agreement

    def __init__(self, run_dir: Path, run: RunDescription, settings: PhaseSettings) -> None:
        self.run_dir, self.run = run_dir, run
        self.position = current_position()
        self.progress = ProgressSender(self.position.rank)
        self.phases: Phases | None = None
        self.error: str | None = None
        self.over = False
        self._settings = settings
        self._runtime: Runtime | None = None
        self._created = self._run_id = ""
        #: Label and model name of each device of this process.
        self._devices: tuple[tuple[str, str], ...] = (("", ""),)
        self._software: dict[str, str] = {}
        #: The coroutine of `Phases.run`.
        self._steps: Iterator[None] | None = None
        # `Phases` times lines only directly before it records traces.
        self._lines = LineLog() if settings.lines and settings.recorded else None

    def open(self, runtime: Runtime, position: ClusterPosition, *, run_id: str = "", clear_run: bool = True) -> None:
        """Remove this rank's files of an earlier run, and write records that mark the run as unfinished.

        With `clear_run`, also remove the logs of loader workers and, on rank 0, `run.json` and files of ranks that this
        run does not have. Without `run_id`, choose a random run id.
        """
        self._created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._run_id = run_id or secrets.token_hex(8)
        self._runtime, self.position = runtime, position
        self.progress = ProgressSender(position.rank)
        record.clear_rank(self.run_dir, position.rank)
        if clear_run:
            record.clear_worker_lines(self.run_dir)  # on all ranks, because each node may have its own directory
            if position.rank == 0:
                record.clear_run(self.run_dir, position.ranks)
        self.save()
        self.progress.tell("starting")

    def begin(
        self,
        runtime: Runtime,
        *,
        device: Any = None,
        model: Any = None,
        loaders: LoaderWatch | None = None,
        agreement: Callable[..., Agreement],
    ) -> Phases:
        """Create and return the phases, directly before the first step, when process group and device exist.

        Args:
            runtime: the runtime of the framework.
            device: the device of the training; None for the framework's current device.
            model: the model, or None if it is not known.
            loaders: times the worker processes that make batches; None if there are none.
            agreement: creates the agreement between ranks from the position, the key-value store and `run_id`.
        """
        devices = runtime.devices(device, model)
        self._runtime = runtime
        self.position = runtime.position(devices)
        self._devices = tuple((runtime.label(name), runtime.device_name(name)) for name in devices)
        self._software = runtime.software()
        self.clock = runtime.clock(devices)
        self.agreement = agreement(self.position, runtime.store(self.position), run_id=self._run_id)
        trace = runtime.trace_name(self.position.first_rank)
        paths = {"full": self.run_dir / trace, "light": self.run_dir / record.kernel_only_trace_name(trace)}
        self.phases = phases = Phases(
            self._settings,
            clock=self.clock,
            agreement=self.agreement,
            progress=self.progress,
            changed=self.save,
            window=lambda kind: runtime.window(
                paths[kind],
                active=self._settings.active,
                devices=devices,
                kind=kind,
                shapes=kind == "full" and runs_ahead(phases.timed),
            ),
            on_gpu=runtime.on_gpu(devices[0]),
            loaders=loaders,
            counter=runtime.flop_counter(devices, model),
            lines=self._lines,
        )
        self._steps = phases.run()
        self.save()
        return phases

    def advance(self, *, raises: bool = False) -> bool:
        """Advance to the next step; return False when the phases are over.

        By default an exception ends only the measurement. With `raises`, an exception is raised into the training.
        """
        assert self._steps is not None  # noqa: S101  # set by begin
        if self._lines is not None:
            self._lines.pause()
        try:
            next(self._steps)
        except StopIteration:
            self.over = True
        except Exception as error:
            self.over = True
            self._end_lines()
            if raises:
                raise
            self.error = f"{type(error).__name__}: {error}"
            logger.warning("gpudiag stops measuring: %s", self.error)
        return not self.over

    def mark_lines(self) -> None:
        """Note in the log of source lines that the current step has just begun."""
        if self._lines is not None:
            self._lines.mark()

    def close(self, error: BaseException | None, *, wait_for_others: bool = True) -> None:
        """Save the measurements. `error` is the exception that ended the training, or None.

        With `wait_for_others`, rank 0 waits for the other ranks' records, and marks the run as failed if a rank failed.
        """
        self._end_lines()
        status: RunStatus = "complete"
        if error is not None:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.error = f"{type(error).__name__}: {error}"
        try:
            problem: str | None = "the block ended without a step: nothing was measured"
            if self.phases is not None:
                self.phases.close()
                problem = self.phases.problem
            self.error = self.error or problem
        finally:
            if self.error is not None and status == "complete":
                status = "failed"
                logger.warning("gpudiag: rank %d: %s", self.position.rank, self.error)
            if self.phases is not None:
                self.agreement.leave()
            self._write_lines()
            self.save(status)
            if self.position.rank == 0:
                self._write_final_run(status, wait_for_others=wait_for_others)
            if self.error is None:
                self.progress.tell("done")

    def _end_lines(self) -> None:
        """Stop recording lines, which slows the program. The phases may have ended while lines were timed."""
        if self._lines is not None:
            self._lines.end()

    def _write_lines(self) -> None:
        """Write the log of the user's lines, if there is one."""
        if self._lines is None or not (self._lines.sections or self._lines.unavailable):
            return
        try:
            write_lines(record.lines_file(self.run_dir, self.position.first_rank), self._lines.encode())
        except Exception as error:  # noqa: BLE001  # e.g. a full disk, or source that cannot be read
            self.progress.note(f"the lines of the source could not be saved: {type(error).__name__}: {error}")

    def save(self, status: RunStatus = "failed") -> None:
        """Write the records of this process's ranks, and on rank 0 of the run, so that a killed run keeps them.

        Until the outcome is known, `status` is `failed` and the run's error says that the run did not finish.
        """
        for number, (label, name) in enumerate(self._devices):
            record.write_rank(self.run_dir, self._rank_record(number, label, name))
        if self.position.rank == 0:
            self._write_run(status, self.error if status != "failed" or self.error else _UNFINISHED)

    def _rank_record(self, number: int, label: str, name: str) -> RankRecord:
        """Return the record of device `number` of this process. All its devices have the same steps and trace.

        `label` is the framework's name of the device, `name` its model name. Before `begin` nothing is measured yet.
        """
        position, phases = self.position, self.phases
        rank = RankRecord(
            rank=position.first_rank + number,
            local_rank=position.local_rank * position.devices + number,
            host=position.host,
            pid=position.pid,
            device=label,
            device_name=name,
            error=self.error,
        )
        if phases is None or self._runtime is None:
            return rank
        trace = self._runtime.trace_name(position.first_rank)
        return msgspec.structs.replace(
            rank,
            warmup=phases.warmup,
            unprofiled=phases.unprofiled,
            timed=phases.timed,
            light=phases.recorded.get("light"),
            profiled=phases.recorded.get("full"),
            trace=trace if "full" in phases.saved else None,
            light_trace=record.kernel_only_trace_name(trace) if "light" in phases.saved else None,
            flops=phases.counter.result if phases.counter else None,
            unmarked=phases.unmarked,
            notes=phases.notes,
            run_id=self.agreement.run_id,
        )

    def _write_final_run(self, status: RunStatus, *, wait_for_others: bool) -> None:
        """Write the run's record when the run ends; see `close`."""
        error = self.error
        if wait_for_others:
            if self.phases is not None:
                self.agreement.wait_for_all(timeout_s=_WAIT_S if status == "complete" else _WAIT_AFTER_FAILURE_S)
            for rank in record.read_ranks(self.run_dir, self.position.ranks, self._run_id):
                if rank.error is not None and error is None:
                    status, error = "failed", f"rank {rank.rank}: {rank.error}"
        self._write_run(status, error)

    def _write_run(self, status: RunStatus, error: str | None) -> None:
        """Write the run's record with the current records of all ranks."""
        assert self._runtime is not None  # noqa: S101  # set by open
        run = RunRecord(
            created=self._created,
            command=self.run.command,
            workload=self.run.workload,
            framework=self._runtime.framework,
            strategy=self.run.strategy,
            world_size=self.position.ranks,
            nodes=self.position.nodes,
            batch_size_per_device=self.run.batch_size,
            options=self.run.options,
            model=self.run.model,
            software=self._software,
            ranks=record.read_ranks(self.run_dir, self.position.ranks, self._run_id),
            steps_found=self.run.steps_found,
            parallel=self.run.parallel,
            status=status,
            error=error,
            run_id=self._run_id,
        )
        record.write_run(self.run_dir, run)


def runs_ahead(timed: UnprofiledSteps | None) -> bool:
    """Return whether the host usually runs ahead so far that recording shapes does not make steps longer.

    Recording shapes takes host time: on an H100 at most 2 % of a recorded step if the device was the limit, and
    41 % of a step of ResNet-50 if the host was the limit. Suppose that the device still works for half the host's time
    after the host has finished a step. Then 50 % more host time does not make the step longer. Return False if the
    device's times are unknown. Prefer host times that include no wait for a full launch queue (`idle_host_ms`).
    """
    if timed is None or not timed.lead_ms or not timed.host_ms:
        return False
    host_ms = statistics.median(timed.idle_host_ms or timed.host_ms)
    return statistics.median(timed.lead_ms) >= host_ms / 2
