"""The next batch is on its way to the GPU while the current one is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]


class DevicePrefetch:
    """Batches on the GPU, each copied on a stream of its own, one batch ahead.

    Copies run beside the current step's kernels when their source is pinned. The last batch may be smaller than the
    others, and is the last one here too. On a CPU device batches are passed through.

    Args:
        batches: batches in host memory.
        device: where to.
    """

    def __init__(self, batches: Iterable[Batch], device: torch.device) -> None:
        self._batches = batches
        self._device = device

    def __iter__(self) -> Iterator[Batch]:
        if self._device.type != "cuda":
            yield from self._batches
            return
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch's own
        source = iter(self._batches)
        ahead = self._copied(source, side)
        while ahead is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(side)
            for tensor in ahead:
                # Its memory was taken on the side stream, and may be given out again only when this step is done.
                tensor.record_stream(current)
            batch, ahead = ahead, self._copied(source, side)
            yield batch

    def _copied(self, source: Iterator[Batch], side: torch.cuda.Stream) -> Batch | None:
        batch = next(source, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            inputs, targets = (tensor.to(self._device, non_blocking=True) for tensor in batch)
        return inputs, targets
