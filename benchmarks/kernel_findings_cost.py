"""Measure the CPU time that kernel classes, and the findings from them, add to `gpudiag analyze`.

    python benchmarks/kernel_findings_cost.py [TRACES…] [--pairs 20]

Whole processes run by turns, in random order within each pair: `gpudiag analyze --json` as it is, and the same without
kernel classes and the finding `slow-compute`. Both processes import the modules of kernel classes, which takes 10 to
15 ms; this time is not measured. The figures are medians of the CPU times (user and system, with child processes), and
the median ratio of a pair with its 95 % confidence interval.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path

import numpy as np
from bench_analyze import run_whole
from rich.console import Console
from rich.table import Table

TRACES = Path(__file__).parents[1] / "tests" / "traces"
_ANALYZE = """
import sys
# Both variants import these modules here. `analyze` imports them while other processes read the traces, and an import
# that shares the cores takes more CPU time.
import gpudiag.analysis.diagnosis.kernels.slow_compute as rule
import gpudiag.app.stages as stages
if sys.argv[1] == "without":
    rule.SlowCompute.examine = lambda self, case, what_if: iter(())
    stages.compute_work = lambda timeline: None
    stages.compute_classes = lambda *args, **named: ()
from gpudiag.__main__ import main
sys.argv = ["gpudiag", "analyze", "--json", *sys.argv[2:]]
main()
"""


def cpu_seconds(variant: str, traces: Path) -> float:
    """Return the CPU time of one analysis, `with` or `without` kernel classes, in a process of its own."""
    return run_whole([sys.executable, "-c", _ANALYZE, variant, str(traces.resolve())])[1]


def main() -> None:
    """Print one row per directory of traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="directories of traces; default: four recordings of tests")
    parser.add_argument("--pairs", type=int, default=20, help="analyses of each variant")
    options = parser.parse_args()
    named = ("tiny", "clean", "resnet50_dataloader", "slow_loader_rank2")
    table = Table("traces", "with, CPU s", "without, CPU s", "ratio (95 % interval)")
    for traces in options.traces or [TRACES / name for name in named]:
        pairs = []
        for _ in range(options.pairs):
            times = {variant: cpu_seconds(variant, traces) for variant in random.sample(("with", "without"), 2)}
            pairs.append((times["with"], times["without"]))
        ratios = np.array([with_classes / without for with_classes, without in pairs])
        # The interval is that of the median over bootstrap samples.
        draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
        low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
        medians = [statistics.median(times) for times in zip(*pairs, strict=True)]
        interval = f"{statistics.median(ratios.tolist()):.3f} ({low:.3f} to {high:.3f})"
        table.add_row(traces.name, *(f"{seconds:.2f}" for seconds in medians), interval)
    Console().print(table)


if __name__ == "__main__":
    main()
