"""Compare the released predictor with published measurements; print the Markdown of docs/predictions.md.

    python benchmarks/cost_model.py

The tables contain the winners according to `predict`, the verdict of `gpudiag recommend --predict-only`, and every
predicted step time next to the measured one. A cross-validation predicts each machine with constants that are fitted on
the other machines.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpudiag.prediction import overlap, paths
from gpudiag.training.strategies import tensorflow1
from tests.prediction import published_systems as published

#: Values that the cross-validation tries: ms per launched operation, GB/s of host memory per core, and the share of the
#: backward pass in forward plus backward.
_LAUNCH_MS = (0.010, 0.015, 0.020, 0.025, 0.030)
_PER_CORE = (2.0, 4.0, 8.0)
_BACKWARD = (0.6, 2 / 3, 0.72)


def main() -> None:
    """Print all tables.

    A verdict on a group of measurements is strictly right if it names the winner, or a tie. A verdict is also right if
    it names a strategy that is in effect as fast as the winner.
    """
    groups = published.groups()
    # The other groups are repeated runs of one strategy, for which a tie is the truth.
    apart = [group for group in groups if not group.alike]
    right, strict = (sum(getattr(group, how) for group in groups) for how in ("right", "strict"))
    print(f"{len(groups)} groups: {right} right, {strict} by the stricter count;")
    named, strictly = (sum(getattr(group, how) for group in apart) for how in ("right", "strict"))
    print(f"{len(apart)} of several strategies: {named} right, {strictly} strictly")
    noise = sum(float(g.row["margin_pct"]) >= 100 * published.TIE for g in groups if g.alike)
    print(f"{len(groups) - len(apart)} of repeated runs of one strategy, {noise} of them 2 % apart and more\n")
    print("| machine | model | GPUs | batch | data | measured | by | predicted | by |")
    print("| --- | --- | --- | ---: | --- | --- | ---: | --- | ---: |")
    for group in groups:
        if not group.right:
            row = group.row
            gpus = row["gpu_ids"] or row["gpus"]
            setting = [row["machine"], row["model"], gpus, row["batch_per_gpu"], row["data_source"].split(" ")[0]]
            verdicts = [group.truth, f"{float(row['margin_pct']):.1f} %", group.said, f"{group.margin_percent:.1f} %"]
            print(f"| {' | '.join([*setting, *verdicts])} |")
    steps()
    held_out()


def steps() -> None:
    """Print every predicted step time next to the measured one."""
    print("\n| machine | model | GPUs | batch | strategy | predicted ms | measured ms | ratio |")
    print("| --- | --- | --- | ---: | --- | ---: | ---: | ---: |")
    by_machine: dict[str, list[float]] = {}
    for target, predicted, taken in published.targets():
        ratio = predicted / taken
        by_machine.setdefault(target["machine"], []).append(abs(ratio - 1))
        setting = [target["machine"], target["model"], target["gpu_ids"] or target["gpus"], target["batch_per_gpu"]]
        setting.append(published.run_of(target).candidate.label)
        print(f"| {' | '.join(setting)} | {predicted:.1f} | {taken:.1f} | {ratio:.2f} |")
    print("\n| machine | step times | median error | within 15 % |")
    print("| --- | ---: | ---: | ---: |")
    every = list(itertools.chain.from_iterable(by_machine.values()))
    for name, errors in [*by_machine.items(), ("all", every)]:
        within = sum(error <= 0.15 for error in errors) / len(errors)
        print(f"| {name} | {len(errors)} | {statistics.median(errors):.1%} | {within:.0%} |")


def held_out() -> None:
    """Cross-validate: fit the constants on all machines except one, and count right predictions for that machine.

    If several sets of constants fit equally well, use the released set if it is among them, else the first.
    """
    shipped = (tensorflow1._LAUNCH_MS, paths._MEMORY_PER_CORE, overlap.BACKWARD_SHARE)  # noqa: SLF001
    counts: dict[tuple[float, float, float], Counter[str]] = {}
    sizes: Counter[str] = Counter()
    for setting in itertools.product(_LAUNCH_MS, _PER_CORE, _BACKWARD):
        tensorflow1._LAUNCH_MS, paths._MEMORY_PER_CORE, overlap.BACKWARD_SHARE = setting  # noqa: SLF001
        groups = published.groups()
        groups = [group for group in groups if not group.alike]
        counts[setting] = Counter(group.row["machine"] for group in groups if group.right)
        sizes = Counter(group.row["machine"] for group in groups)
    tensorflow1._LAUNCH_MS, paths._MEMORY_PER_CORE, overlap.BACKWARD_SHARE = shipped  # noqa: SLF001
    print("\n| machine left out | groups | right, assumptions chosen on the others |")
    print("| --- | ---: | ---: |")
    total = 0
    for name in sizes:
        best = max(
            counts,
            key=lambda setting: (sum(n for other, n in counts[setting].items() if other != name), setting == shipped),
        )
        total += counts[best][name]
        print(f"| {name} | {sizes[name]} | {counts[best][name]} |")
    print(f"| all | {sum(sizes.values())} | {total} |")
    every = [sum(groups.values()) for groups in counts.values()]
    print(f"\nOver all {len(counts)} settings of the assumptions: {min(every)} to {max(every)} groups right.")


if __name__ == "__main__":
    main()
