"""Compare gpudiag's kernel classes with another tool's tables: `python benchmarks/class_shares.py --root DIR`.

`expectations/class_shares.json` has the sums that TraceLens publishes beside its traces; the traces must be downloaded
to DIR. The comparison uses shares of the compute time. The exit code is 1 if a class in `JUDGED` differs by more than
`--points`.

    --points 3      allowed difference, in percent points
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpudiag.app.analyze import analyze
from gpudiag.model.analysis import Analysis

HERE = Path(__file__).resolve().parent
#: Row → (classes of gpudiag, categories of TraceLens). TraceLens counts all kernels that a convolution launches,
#: including layout conversions. TraceLens has a category for rotary embeddings, which gpudiag counts as elementwise.
ROWS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "matmul": (("matmul",), ("GEMM",)),
    "attention": (("attention",), ("SDPA_fwd", "InferenceAttention")),
    "normalization": (("normalization",), ("RMSNorm", "NORM_fwd", "NORM_bwd")),
    "elementwise": (("elementwise",), ("elementwise", "RoPE_fwd")),
    "convolution": (("convolution", "layout-conversion"), ("CONV_fwd", "CONV_bwd")),
}
#: Rows that determine the exit code.
JUDGED = ("matmul", "attention", "normalization", "elementwise")


def share(ms: dict[str, float], names: tuple[str, ...], total_ms: float) -> float:
    """Return the sum of `ms` over `names`, in percent of the total."""
    return 100 * sum(ms.get(name, 0.0) for name in names) / total_ms


def differences(recording: dict[str, Any], analysis: Analysis) -> dict[str, tuple[float, float]]:
    """Return row → (percentage of gpudiag, percentage of TraceLens), for rows that are not empty.

    `recording` is an entry of `class_shares.json`; its `ms` has TraceLens's time of each category, and `memory copies`
    the part of copies without a kernel.
    """
    ours = {row.kernel_class: row.ms_per_step for row in analysis.compute_classes}
    theirs: dict[str, float] = recording["ms"]
    # gpudiag does not count copies without a kernel as compute time.
    their_total = sum(theirs.values()) - recording.get("memory copies", 0.0)
    pairs = {
        row: (share(ours, classes, sum(ours.values())), share(theirs, categories, their_total))
        for row, (classes, categories) in ROWS.items()
    }
    return {row: pair for row, pair in pairs.items() if max(pair) > 0}


def main() -> int:
    """Print a row for each recording and class."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--root", type=Path, required=True)
    options.add_argument("--points", type=float, default=3.0)
    given = options.parse_args()
    expected = msgspec.json.decode((HERE / "expectations" / "class_shares.json").read_bytes())
    judged, agree = 0, 0
    print("| recording | class | gpudiag | TraceLens | difference |\n| --- | --- | ---: | ---: | ---: |")
    for recording in expected["recordings"]:
        path = given.root / recording["path"]
        if not path.exists():
            print(f"{recording['name']}: {path} is not there", file=sys.stderr)
            continue
        for row, (ours, theirs) in differences(recording, analyze([path])).items():
            print(f"| {recording['name']} | {row} | {ours:.1f} % | {theirs:.1f} % | {ours - theirs:+.1f} |")
            judged += row in JUDGED
            agree += row in JUDGED and abs(ours - theirs) <= given.points
    print(f"\n{agree} of {judged} shares of {', '.join(JUDGED)} agree within {given.points:g} points")
    return 0 if agree == judged else 1


if __name__ == "__main__":
    raise SystemExit(main())
