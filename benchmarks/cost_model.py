"""The cost model beside published measurements: `python benchmarks/cost_model.py` prints Markdown for docs/accuracy.md.

The second table is made with what the model assumes fitted on all machines but one, and judged on that one.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpudiag.prediction import overlap, paths
from tests.prediction import published_systems as published

_LAUNCH_MS = (0.010, 0.015, 0.020, 0.025, 0.030)
_PER_CORE = (2.0, 4.0, 8.0)
_BACKWARD = (0.6, 2 / 3, 0.72)


def main() -> None:
    """Print all tables."""
    groups = published.groups()
    apart = [group for group in groups if not group.alike]
    named, strict = (sum(getattr(group, how) for group in groups) for how in ("named", "right"))
    print(f"{len(groups)} groups: {named} right, {strict} by the stricter count;")
    print(f"{len(apart)} whose strategies differ: {sum(g.named for g in apart)} right\n")
    print("| machine | model | GPUs | batch | data | measured | by | predicted | by |")
    print("| --- | --- | --- | ---: | --- | --- | ---: | --- | ---: |")
    for group in groups:
        if not group.named:
            row = group.row
            gpus = row["gpu_ids"] or row["gpus"]
            setting = [row["machine"], row["model"], gpus, row["batch_per_gpu"], row["data_source"].split(" ")[0]]
            verdicts = [_short(group.truth), f"{float(row['margin_pct']):.1f} %"]
            verdicts += [_short(group.said), f"{group.margin_percent:.1f} %"]
            print(f"| {' | '.join([*setting, *verdicts])} |")
    print("\n| machine | step times | median error | within 15 % |")
    print("| --- | ---: | ---: | ---: |")
    by_machine: dict[str, list[float]] = {}
    for target, predicted, taken in published.targets():
        by_machine.setdefault(target["machine"], []).append(abs(predicted / taken - 1))
    every = list(itertools.chain.from_iterable(by_machine.values()))
    for name, errors in [*by_machine.items(), ("all", every)]:
        within = sum(error <= 0.15 for error in errors) / len(errors)
        print(f"| {name} | {len(errors)} | {statistics.median(errors):.1%} | {within:.0%} |")
    held_out()


def held_out() -> None:
    """Choose what is assumed by all machines but one; count on that one."""
    counts: dict[tuple[float, float, float], Counter[str]] = {}
    sizes: Counter[str] = Counter()
    for setting in itertools.product(_LAUNCH_MS, _PER_CORE, _BACKWARD):
        published.LAUNCH_MS, paths._MEMORY_PER_CORE, overlap.BACKWARD_SHARE = setting  # noqa: SLF001
        found = published.groups()
        counts[setting] = Counter(group.row["machine"] for group in found if group.named)
        sizes = Counter(group.row["machine"] for group in found)
    print("\n| machine left out | groups | right, assumptions fitted on the others |")
    print("| --- | ---: | ---: |")
    total = 0
    for name in sizes:
        best = max(counts, key=lambda setting: sum(n for other, n in counts[setting].items() if other != name))
        total += counts[best][name]
        print(f"| {name} | {sizes[name]} | {counts[best][name]} |")
    print(f"| all | {sum(sizes.values())} | {total} |")
    every = [sum(found.values()) for found in counts.values()]
    print(f"\nOver all {len(counts)} settings of the assumptions: {min(every)} to {max(every)} groups right.")


def _short(label: str) -> str:
    if label == "tie":
        return label
    run = published.run_of({"system": "", "machine": "", "model": "", "gpus": "0", "gpu_ids": ""}, label)
    name = "parameters" if run.strategy.startswith("parameter_server") else run.strategy
    where = f" on {run.placement.upper()}" if run.placement in {"cpu", "gpu"} else ""
    return f"{name}{where}{f', nccl={run.nccl.lower()}' if run.nccl else ''}"


if __name__ == "__main__":
    main()
