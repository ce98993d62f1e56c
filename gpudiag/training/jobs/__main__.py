"""Run one training process: `python -m gpudiag.training.jobs RUN_DIR REQUEST`.

REQUEST is a file with a `LaunchRequest` as JSON. The process's output goes to `RUN_DIR/logs/rank<r>.log`. If the
process fails, it reports the failure to the launcher.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import msgspec

from gpudiag.errors import GpudiagError, WorkerFailedError
from gpudiag.model.benchmarks.gradient_bandwidth import GradientBandwidthPlan
from gpudiag.model.benchmarks.launch_request import LaunchRequest, ProgramPlan
from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.model.benchmarks.strategy_benchmark import StrategyBenchmarkPlan
from gpudiag.model.benchmarks.tries import TriesPlan
from gpudiag.model.job import Job
from gpudiag.model.run import RankRecord
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.jobs.own_function import find_function
from gpudiag.training.jobs.parent import die_with_parent
from gpudiag.training.loop.launched import Launched, set_launched
from gpudiag.training.models.registry import is_own, workload_entry
from gpudiag.training.session import record
from gpudiag.training.session.position import current_position
from gpudiag.training.session.progress import ProgressSender

#: Exit code after SIGTERM: 128 plus the signal's number, as in a shell.
_ENDED = 143


def main(arguments: list[str]) -> int:
    """Run the requested program in this process, given RUN_DIR and REQUEST, and return the exit code.

    The exit code is 0, or 1 after an error, 2 after an exit or Ctrl-C within the program, or `_ENDED` after SIGTERM.
    """
    run_dir, request = Path(arguments[0]), msgspec.json.decode(Path(arguments[1]).read_bytes(), type=LaunchRequest)
    job = request.job
    die_with_parent()  # torchrun starts each worker in its own session
    position = current_position()
    _log_to(run_dir / record.LOGS_DIR / f"rank{position.rank}.log")
    progress = ProgressSender(position.rank)
    progress.tell("starting")
    launched = Launched(run_dir=run_dir, job=job)
    set_launched(launched)
    _raise_at_sigterm()
    try:
        if framework_named(job.framework).entry:
            with _without_collections():  # this call imports the framework
                _call(framework_named(job.framework).entry)
        if request.program is not None:
            _run_program(request.program, launched)
        else:
            _run_workload(job)
        _check_measured(run_dir, position.rank, job.workload)
    except Ended:
        with contextlib.suppress(OSError):
            _note_failure(run_dir, "ended from outside")  # the launcher reports why
        return _ENDED
    except BaseException as error:  # noqa: BLE001  # reported to the launcher
        with contextlib.suppress(OSError):  # a full disk must not prevent the report
            traceback.print_exc()
        expected = isinstance(error, GpudiagError)
        text = str(error) if expected else _described(error)
        with contextlib.suppress(OSError):
            _note_failure(run_dir, text)
        progress.fail(
            text,
            hint=vars(error).get("hint"),  # without the default hint of the error's class, which does not apply here
            exit_code=error.exit_code if isinstance(error, GpudiagError) else WorkerFailedError.exit_code,
        )
        return 1 if expected or isinstance(error, Exception) else 2
    return 0


def _run_workload(job: Job) -> None:
    """Call the user's function, or train or predict with the built-in workload."""
    if is_own(job.workload):
        find_function(job.workload)()
    elif not workload_entry(job.workload).trains:
        from gpudiag.training.jobs.volume.unet3d_predict import predict

        predict(job)
    else:
        _call(framework_named(job.framework).trainer, job)


def _run_program(plan: ProgramPlan, launched: Launched) -> None:
    """Import and run one of gpudiag's own programs. The import loads the program's framework."""
    if isinstance(plan, StrategyBenchmarkPlan):
        from gpudiag.training.jobs.strategy_benchmark.job import run_strategy_benchmark

        run_strategy_benchmark(plan, launched.run_dir)
    elif isinstance(plan, GradientBandwidthPlan):
        from gpudiag.training.jobs.strategy_benchmark.gradient_bandwidth import measure_gradient_bandwidth

        measure_gradient_bandwidth(plan, launched.run_dir)
    elif isinstance(plan, TriesPlan):
        from gpudiag.training.jobs.tries import run_tries

        run_tries(plan, launched)
    elif isinstance(plan, SelftestPlan):
        _call(framework_named(launched.job.framework).fault_job, plan, launched)
    else:
        from gpudiag.training.jobs.sweep import run_sweep

        run_sweep(plan, launched)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collections, which would take a quarter of a framework's import time and free nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _call(name: str, *arguments: object) -> None:
    """Call a `module:function` of gpudiag."""
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)(*arguments)


class Ended(KeyboardInterrupt):  # no `Error` in the name, because records contain the name
    """Signal that the launcher ends this process. Sessions save their measurements, as after Ctrl-C."""


def _raise_at_sigterm() -> None:
    """Make SIGTERM raise `Ended` in the training loop, so that the loop's session is closed and saved."""
    pid = os.getpid()

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal may follow, because launcher and torchrun both send one
        if os.getpid() != pid:
            os._exit(_ENDED)  # this is a forked worker of a DataLoader
        raise Ended("by the launcher")

    signal.signal(signal.SIGTERM, end)


def _described(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error}"


def _check_measured(run_dir: Path, rank: int, workload: str) -> None:
    """Raise WorkerFailedError if this rank has no record, or a record with an error."""
    rank_record = _read_rank(run_dir, rank)
    if rank_record is None:
        raise WorkerFailedError(
            f"{workload} ended without measuring anything",
            "Its training loop must run within `with gpudiag.profile() as prof:` and over `prof.steps(loader)`.",
        )
    if rank_record.error is not None:
        raise WorkerFailedError(rank_record.error)


def _note_failure(run_dir: Path, text: str) -> None:
    """Write the reason `text` into this rank's record. If there is no record yet, make one."""
    place = current_position()
    rank_record = _read_rank(run_dir, place.rank) or RankRecord(
        rank=place.rank, local_rank=place.local_rank, host=place.host, pid=place.pid, device="", device_name=""
    )
    if rank_record.error is None:  # the session may have written a more precise reason
        record.write_rank(run_dir, msgspec.structs.replace(rank_record, error=text))


def _read_rank(run_dir: Path, rank: int) -> RankRecord | None:
    return next((known for known in record.read_ranks(run_dir, rank + 1) if known.rank == rank), None)


def _log_to(path: Path) -> None:
    """Redirect standard output and standard error of this process and its child processes to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an existing file may be another user's link
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
