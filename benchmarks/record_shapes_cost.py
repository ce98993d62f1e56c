"""Measure the cost of `record_shapes=True` in gpudiag's full trace.

    python benchmarks/record_shapes_cost.py [--models resnet50,gpt2] [--rounds 4] [--seconds 10]

ResNet-50 in bf16 and GPT-2 (see `compute_models.py`) train with the full batch, and with an eighth of the batch, for
which the host determines the step time. In each round both settings (with and without shapes) record a new window of 2
discarded and 8 recorded steps, as gpudiag does. The order alternates between rounds. A job ends after `--rounds`
rounds, or after `--seconds` seconds and at least two rounds. Step times come from CUDA events between recorded steps,
or on a CPU from the host's clock. The first recorded step of a window is omitted. The output is one JSON line. It has
the median step time in ms without the profiler, without shapes and with shapes, and the size of a trace in MB, plain
and compressed.

`TINY=1` in the environment makes the jobs small enough for a CPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compute_models import Training, prepare_gpt2, prepare_resnet50, size

from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow
from gpudiag.training.session.step_counts import PROFILER_WARMUP_STEPS

ACTIVE_STEPS = 8
#: Number of steps before the first round, and number of unprofiled steps.
FIRST_STEPS, UNPROFILED_STEPS = 8, 12
JOBS: dict[str, tuple[Callable[..., Training], int]] = {
    "resnet50": (prepare_resnet50, size(96, 8)),
    "gpt2": (prepare_gpt2, size(8, 8)),
}


class Times:
    """Times between marks, from CUDA events or from the host's clock."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self._ns: list[int] = []

    def mark(self) -> None:
        """Mark the end of a step, which is the beginning of the next one."""
        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
            event.record()
            self._events.append(event)
        else:
            self._ns.append(time.perf_counter_ns())

    def read(self) -> list[float]:
        """Wait for the device, and return the times in ms."""
        if not self._events:
            return [(end - begin) / 1e6 for begin, end in zip(self._ns, self._ns[1:], strict=False)]
        torch.cuda.synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return [begin.elapsed_time(end) for begin, end in pairs]


def unprofiled(training: Training) -> list[float]:
    """Return step times in ms without the profiler, except the first step."""
    times = Times()
    times.mark()
    for _ in range(UNPROFILED_STEPS):
        training.step()
        times.mark()
    return times.read()[1:]


def recorded(training: Training, path: Path, *, shapes: bool) -> tuple[list[float], float, float]:
    """Record a window. Return (step times in ms, MB of the plain trace, MB of the compressed trace)."""
    times = Times()
    window = ProfiledWindow(path, active=ACTIVE_STEPS, cuda=torch.cuda.is_available(), shapes=shapes)
    window.start()
    try:
        for step in range(PROFILER_WARMUP_STEPS + ACTIVE_STEPS):
            training.step()
            if step >= PROFILER_WARMUP_STEPS:
                times.mark()
            window.step()
    finally:
        window.stop()
    compressed = path.stat().st_size
    with gzip.open(path) as trace:
        plain = sum(len(chunk) for chunk in iter(lambda: trace.read(1 << 20), b""))
    path.unlink()
    return times.read(), plain / 1e6, compressed / 1e6


def compare(training: Training, scratch: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the results of one job: median step times in ms, and the size of a trace in MB with and without shapes.

    Args:
        training: the job.
        scratch: directory for the traces.
        rounds: maximum number of rounds.
        seconds: time after which no third or later round begins.
    """
    began = time.perf_counter()
    for _ in range(FIRST_STEPS):
        training.step()
    step_ms: dict[str, list[float]] = {"unprofiled": [], "without": [], "with": []}
    sizes: dict[str, tuple[float, float]] = {}
    done = 0
    while done < rounds and (done < 2 or time.perf_counter() - began < seconds):
        step_ms["unprofiled"] += unprofiled(training)
        for name in ("without", "with")[:: -1 if done % 2 else 1]:
            times, *trace_mb = recorded(training, scratch / "trace.json.gz", shapes=name == "with")
            step_ms[name] += times
            sizes[name] = (round(trace_mb[0], 2), round(trace_mb[1], 2))
        done += 1
    medians = {f"{name}_ms": round(statistics.median(times), 3) for name, times in step_ms.items()}
    return {
        "rounds": done,
        **medians,
        "plain_and_compressed_mb": sizes,
        "took_s": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(JOBS), help="names with commas between them; default: all")
    parser.add_argument("--rounds", type=int, default=4, help="the most rounds of each job")
    parser.add_argument("--seconds", type=float, default=10.0, help="begin no third or later round after this long")
    given = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result: dict[str, Any] = {"device": device, "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.models.split(","):
            make, batch = JOBS[name]
            for samples in (batch, batch // 8):
                training = make(batch=samples)
                result[f"{name} {samples}"] = compare(training, Path(scratch), given.rounds, given.seconds)
                del training
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
