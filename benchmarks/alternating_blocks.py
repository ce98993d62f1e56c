"""Measure the cost of a training script's problem in alternating blocks of steps with and without it, in one process.

    python benchmarks/alternating_blocks.py --block 14 --skip 4 SCRIPT.py [its arguments]

The script runs unchanged. The script must have a switch `--fixed`, and read `args.fixed` where the problem would occur.
This program keeps a reference to `args` and changes `args.fixed` every `--block` steps. Of four consecutive blocks, the
first and the last have the problem. A step ends at a call of an optimizer's `step`. The device is synchronized at the
start and end of each block, and the first `--skip` steps of a block are not timed. `--by-epoch` is for scripts that
read `args.fixed` only at the start of an epoch: it makes each epoch as long as a block. Forked DataLoader workers also
read the changed `args.fixed`. `--skip` must be larger than the number of batches that workers have prepared. Under
`torchrun`, use `--seconds inf`, so that all ranks measure the same blocks; rank 0 prints the result.

The last line of output is a JSON object in ms. It has the step times with and without the problem (medians, and one per
block), and the host's wait for the device at the ends of blocks. A long wait shows that the device determines the step
time.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import runpy
import statistics
import sys
import time
from pathlib import Path
from typing import Any

#: Whether the problem is present in each of four consecutive blocks. This order cancels a steady drift.
ORDER = (True, False, False, True)


class SharedSwitch(argparse.Namespace):
    """Options of a script; `fixed` is in memory that forked workers share."""

    _cell = mmap.mmap(-1, 1)

    @property
    def fixed(self) -> bool:
        """Return whether the problem is absent now."""
        return self._cell[0] != 0

    @fixed.setter
    def fixed(self, value: bool) -> None:
        self._cell[0] = int(value)


class Blocks:
    """Time blocks of steps, and switch the problem on and off at their boundaries.

    Args:
        block: number of steps in a block.
        skip: number of steps at the start of a block that are not timed.
        seconds: after this time, no further four blocks are begun.
    """

    def __init__(self, *, block: int, skip: int, seconds: float) -> None:
        self.block, self.skip, self.seconds = block, skip, seconds
        self.args: argparse.Namespace | None = None
        self.times: list[tuple[bool, float]] = []  # per block: (has the problem, ms per step)
        self.leads: list[float] = []  # per block: ms that the host waited for the device at the end
        self.steps = -block  # one warm-up block
        self.began = self.first = 0.0

    def synchronize(self) -> float:
        """Wait for the device; return the wait in milliseconds."""
        import torch  # noqa: PLC0415 # the script decides when to import torch

        start = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    def step(self, *_: Any) -> None:
        """Count an optimizer step, and start or end the timing of a block if this step is at its boundary."""
        self.steps += 1
        if self.steps < 0:
            return
        number_in_block = self.steps % self.block
        if number_in_block == self.skip:
            self.synchronize()
            self.began = time.perf_counter()
        if number_in_block == 0:
            self._end_block()

    def _end_block(self) -> None:
        """Store the block's step time, and set the switch for the next block. Exit after the last block."""
        lead = self.synchronize()
        now = time.perf_counter()
        done = self.steps // self.block
        if done:
            self.leads.append(lead)
            self.times.append((ORDER[(done - 1) % 4], 1e3 * (now - self.began) / (self.block - self.skip)))
        else:  # the warm-up block
            self.first = now
        if self._is_enough(done, now - self.first):
            raise SystemExit(0)
        if self.args is not None:
            self.args.fixed = not ORDER[done % 4]

    def _is_enough(self, done: int, spent: float) -> bool:
        """Return True after 8 blocks, after 4 if they took over `self.seconds`, or after 2 if over three times that.

        `done` is the number of timed blocks, and `spent` their time in s.
        """
        if done and done % 4 == 0:
            return done == 8 or spent > self.seconds
        return done == 2 and spent > 3 * self.seconds

    def result(self) -> dict[str, Any]:
        """Return medians over blocks in milliseconds per step; `lead_ms` is the host's wait at the end of a block."""
        with_problem = [ms for problem, ms in self.times if problem]
        without = [ms for problem, ms in self.times if not problem]
        if not with_problem or not without:
            return {"error": f"{len(self.times)} blocks were timed"}
        slow, fast = statistics.median(with_problem), statistics.median(without)
        return {
            "problem_ms": round(slow, 2),
            "fixed_ms": round(fast, 2),
            "costs_ms": round(slow - fast, 2),
            "lead_ms": round(statistics.median(self.leads), 2),
            "blocks": [[problem, round(ms, 2)] for problem, ms in self.times],
        }


def hold_arguments(blocks: Blocks, *, by_epoch: bool) -> None:
    """Patch `ArgumentParser` so that `blocks` gets the options that the script parses.

    With `by_epoch`, set the options `steps_per_epoch`, so that each epoch is one block, and `epochs`, so that the
    script does not end before the last block.
    """
    parse = argparse.ArgumentParser.parse_args

    def parse_args(parser: argparse.ArgumentParser, *given: Any, **named: Any) -> Any:
        namespace = parse(parser, *given, **named)
        if hasattr(namespace, "fixed"):
            namespace = SharedSwitch(**vars(namespace))
            blocks.args = namespace
            if by_epoch:
                namespace.steps_per_epoch, namespace.epochs = blocks.block, 1000
        return namespace

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[assignment,method-assign]  # for the script's parser


def main() -> None:
    """Run the script, switch its problem on and off, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block", type=int, default=14)
    parser.add_argument("--skip", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0, help="no further four blocks after this long")
    parser.add_argument("--by-epoch", action="store_true", help="make a block of each epoch")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    blocks = Blocks(block=given.block, skip=given.skip, seconds=given.seconds)
    hold_arguments(blocks, by_epoch=given.by_epoch)

    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415 # after the options are parsed

    register_optimizer_step_post_hook(blocks.step)
    sys.argv = [str(given.script), *given.arguments]
    sys.path.insert(0, str(given.script.parent))
    try:
        runpy.run_path(str(given.script), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(blocks.result()), flush=True)
    if "RANK" in os.environ:
        os._exit(0)  # PyTorch's gloo threads may abort a process whose interpreter ends


if __name__ == "__main__":
    main()
