"""What a session says when it ends: where the run is and what to type next, or what a loop was too short by."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import RUN_FILE, readable_json
from gpudiag.training.session.runtime import WARMUP_STEPS

#: The analysis leaves out the first and the last recorded step: of fewer than three nothing remains.
FEWEST_RECORDED = 3


def recording_steps(active: int) -> int:
    """Steps that the two recordings take together, with those that they throw away."""
    return 2 * (WARMUP_STEPS + active)


def what_would_do(ran: int, missing: int, *, at_least: bool, run_in: int) -> str:
    """What would have been enough.

    Args:
        ran: steps of the loop.
        missing: steps that it was too short by; `at_least` where it may be more.
        run_in: steps between the warm-up and the timed ones.

    Worked example. A loop of 19 steps on a CPU: two recordings of 2 + 3 leave 9, a third of them for the warm-up:
    `warmup=3, steps=6, active=3`.
    """
    needed = f"{'at least ' * at_least}{missing} more step{'s' * (missing != 1)} would be enough"
    left = ran - recording_steps(FEWEST_RECORDED) - run_in
    if left < 2:
        return f"{needed}; no arguments make do with fewer than {ran - left + 2} steps in all"
    warmup = max(1, left // 3)
    fits = f"warmup={warmup}, steps={left - warmup}, active={FEWEST_RECORDED}"
    return f"{needed}, or gpudiag.profile(…, {fits}) with these {ran}"


def tell_where_it_is(run_dir: Path) -> None:
    """On rank 0's standard error, two lines; nothing where nothing was timed, which a warning has said."""
    run = readable_json(run_dir / RUN_FILE, RunRecord, RUN_SCHEMA)
    if run is None or sys.stderr is None:
        return
    timed = [rank.unprofiled for rank in run.ranks if rank.unprofiled is not None]
    if not timed:
        return
    slowest = max(timed, key=lambda times: times.mean_ms)
    ranks = f"{len(timed)} rank{'s' * (len(timed) != 1)}"
    place = shlex.quote(str(run_dir))
    said = (
        f"gpudiag: {len(slowest.step_ms)} steps of {slowest.mean_ms:.1f} ms timed on {ranks}; the run is in {place}\n"
    )
    if len(run.ranks) < run.world_size:
        said += (
            f"  the other nodes' ranks are in their own {place}: bring it here, then gpudiag gather {place} THEIRS\n"
        )
    sys.stderr.write(f"{said}  next: gpudiag analyze {place}\n")
    sys.stderr.flush()
