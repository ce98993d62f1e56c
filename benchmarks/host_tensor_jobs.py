"""Training scripts for one GPU that compute on the CPU too, in operators of their own: is the first finding right?

    python benchmarks/host_tensor_jobs.py [--jobs adam,scores] [--keep DIR] [--rounds 2]

As unseen_gpu_jobs.py; which findings are right was written down before each of these first ran on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional
from unseen_gpu_jobs import CLASSES, DEVICE, SIDE, convolutional, language, main, trained, words
from unseen_jobs import Loop

ON_GPU = DEVICE.type == "cuda"
#: Numbers of a tensor that takes some tenths of a millisecond to go through, and of one that takes milliseconds.
SOME, MANY = (1 << 20, 1 << 22) if ON_GPU else (1 << 10, 1 << 12)


def _host(like: Tensor) -> Tensor:
    return torch.empty_like(like, device="cpu", pin_memory=ON_GPU)


def adam(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """The optimizer and its state are in the host's memory, pinned: gradients go there, parameters come back."""
    model, optimizer = language()
    parameters = list(model.parameters())
    kept = [_host(parameter).copy_(parameter.detach()).requires_grad_() for parameter in parameters]
    for own in kept:
        own.grad = _host(own)
    there = torch.optim.AdamW(kept)
    while True:
        if not bad():
            trained(model.loss(words()), optimizer)
            yield
            continue
        model.zero_grad()
        model.loss(words()).backward()  # type: ignore[no-untyped-call]  # torch's own
        for own, parameter in zip(kept, parameters, strict=True):
            if own.grad is not None and parameter.grad is not None:
                own.grad.copy_(parameter.grad, non_blocking=True)
        if ON_GPU:
            torch.cuda.synchronize()
        there.step()
        with torch.no_grad():
            for own, parameter in zip(kept, parameters, strict=True):
                parameter.copy_(own, non_blocking=True)
        yield


def scores(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Scores of what was seen so far are sorted on the CPU after each step."""
    model, optimizer = language()
    seen = torch.rand(MANY // 16)
    while True:
        trained(model.loss(words()), optimizer)
        if bad():
            order = seen.argsort()
            seen[order].cumsum(0)
        yield


def batches(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Each batch is drawn, shifted and clipped on the CPU in the loop, without a loader."""
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    ready, labels = torch.randn(64, 3, SIDE, SIDE), torch.randint(0, CLASSES, (64,), device=DEVICE)
    held = _host(ready)
    while True:
        images = torch.randn(64, 3, SIDE, SIDE).roll((3, 5), (2, 3)).clamp(-2, 2) if bad() else ready
        held.copy_(images)
        trained(functional.cross_entropy(model(held.to(DEVICE, non_blocking=True)), labels), optimizer)
        yield


def averages(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Two hundred running averages in the host's memory move on after each step, each in two short operations."""
    model, optimizer = language()
    kept, new = [torch.zeros(SOME) for _ in range(200)], torch.ones(SOME)
    while True:
        trained(model.loss(words()), optimizer)
        for one in kept if bad() else ():
            one.mul_(0.99).add_(new, alpha=0.01)
        yield


def norms(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Gradients go to the host's memory, pinned, and their norms are taken there."""
    model, optimizer = language()
    parameters = list(model.parameters())
    kept = [_host(parameter) for parameter in parameters]
    while True:
        trained(model.loss(words()), optimizer)
        if bad():
            for own, parameter in zip(kept, parameters, strict=True):
                if parameter.grad is not None:
                    own.copy_(parameter.grad, non_blocking=True)
            if ON_GPU:
                torch.cuda.synchronize()
            log = [float(own.norm()) for own in kept]
            del log
        yield


#: By job, its loop and the codes that are right for it.
JOBS: dict[str, tuple[Loop, tuple[str, ...]]] = {
    "adam": (adam, ("launch-bound",)),
    "scores": (scores, ("launch-bound",)),
    "batches": (batches, ("launch-bound", "input-bound")),
    "averages": (averages, ("launch-bound",)),
    "norms": (norms, ("launch-bound",)),
}

if __name__ == "__main__":
    main(__doc__, __file__, JOBS)
