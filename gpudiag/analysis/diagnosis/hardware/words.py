"""Word what hardware findings share: names of GPUs, and the cost of a bandwidth in a training step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudiag.model.facts import Gpu

#: fp32 gradients of ResNet-50: 25,557,032 parameters of four bytes.
RESNET50_GRADIENT_BYTES = 102_228_128


def gpu_list(indices: Iterable[int]) -> str:
    """Return `GPU 3`, `GPUs 0 and 2`, or `GPUs 0-5`."""
    numbers = sorted(set(indices))
    spans = _spans(numbers)
    joined = spans[0] if len(spans) == 1 else f"{', '.join(spans[:-1])} and {spans[-1]}" if spans else "none"
    return f"GPU {joined}" if len(numbers) == 1 else f"GPUs {joined}"


def _spans(numbers: Sequence[int]) -> list[str]:
    """Write three or more consecutive numbers as a range, and others singly."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [span for run in runs for span in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]


def gpu_list_with_models(indices: Iterable[int], gpus: Iterable[Gpu]) -> str:
    """Return `gpu_list` with the models in parentheses: `GPUs 0-5 (GeForce GTX 1070)`."""
    wanted = set(indices)
    models = dict.fromkeys(gpu.name for gpu in gpus if gpu.index in wanted)
    return f"{gpu_list(wanted)} ({', '.join(models)})" if models else gpu_list(wanted)


def pair_list(pairs: Iterable[tuple[int, int]]) -> str:
    """Return `0↔4`, or `0↔4, 1↔5 and 3 more`: pairs of GPUs, at most six by name."""
    return _first([f"{a}↔{b}" for a, b in sorted(set(pairs))], 6)


def first_four(names: Sequence[str]) -> str:
    """Join names, at most four: `a, b, c, d and 2 more`."""
    return _first(names, 4)


def _first(names: Sequence[str], most: int) -> str:
    omitted = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + omitted


def gradient_cost(gb_per_s: float) -> str:
    """Describe the effect of a bandwidth on training, with a well-known model.

    Sending the gradients once takes bytes / bandwidth; an all-reduce sends them nearly twice, 2(n-1)/n times.
    """
    once_ms = RESNET50_GRADIENT_BYTES / gb_per_s / 1e6
    return f"ResNet-50's 102 MB of gradients take {once_ms:.{0 if once_ms >= 10 else 1}f} ms to cross it once"
