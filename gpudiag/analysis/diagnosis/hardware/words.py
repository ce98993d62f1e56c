"""Words that hardware findings share: names of GPUs, and what a bandwidth means for a training step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudiag.model.facts import Gpu

#: fp32 gradients of ResNet-50: 25,557,032 parameters of four bytes.
RESNET50_GRADIENT_BYTES = 102_228_128


def _spans(numbers: Sequence[int]) -> list[str]:
    """Three and more neighbours as a span, others one by one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [part for run in runs for part in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]


def gpu_list(indices: Iterable[int]) -> str:
    """`GPU 3`, `GPUs 0 and 2`, `GPUs 0-5`."""
    numbers = sorted(set(indices))
    parts = _spans(numbers)
    joined = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else "none"
    return f"GPU {joined}" if len(numbers) == 1 else f"GPUs {joined}"


def gpu_list_with_models(indices: Iterable[int], gpus: Iterable[Gpu]) -> str:
    """The same with the models behind it in parentheses: `GPUs 0-5 (GeForce GTX 1070)`."""
    wanted = set(indices)
    models = dict.fromkeys(gpu.name for gpu in gpus if gpu.index in wanted)
    return f"{gpu_list(wanted)} ({', '.join(models)})" if models else gpu_list(wanted)


def pair_list(pairs: Iterable[tuple[int, int]]) -> str:
    """`0↔4`, or `0↔4, 1↔5 and 3 more`: pairs of GPUs, six at most by name."""
    ordered = sorted(set(pairs))
    shown = ", ".join(f"{a}↔{b}" for a, b in ordered[:6])
    return shown if len(ordered) <= 6 else f"{shown} and {len(ordered) - 6} more"


def gradient_cost(gb_per_s: float) -> str:
    """What a rate means for training, by the one model everybody knows.

    Sending the gradients once takes bytes / bandwidth; an all-reduce sends them nearly twice, 2(n-1)/n times.
    """
    once_ms = RESNET50_GRADIENT_BYTES / gb_per_s / 1e6
    return f"ResNet-50's 102 MB of gradients take {once_ms:.{0 if once_ms >= 10 else 1}f} ms to cross it once"
