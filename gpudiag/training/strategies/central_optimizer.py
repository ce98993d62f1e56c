"""An optimizer that updates parameters on other devices or processes, as parameter servers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn


class CentralOptimizer(torch.optim.Optimizer):
    """An optimizer of the model's parameters that updates only those that this process owns.

    Learning-rate schedulers work on it: the settings are copied to the inner optimizer before each step.

    Args:
        parameters: the model's parameters.
        make: makes an optimizer of given parameters.
        owned: the master parameters that this process updates, which need not be the model's tensors. May be empty.
        before: called before each update, to fill the masters' gradients.
        after: called after each update, to copy all parameters into the model.
        kept: gradient memory that is communicated, so it is zeroed and never freed.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        owned: list[nn.Parameter],
        before: Callable[[], None],
        after: Callable[[], None],
        *,
        kept: Sequence[torch.Tensor] = (),
    ) -> None:
        # An optimizer of an empty parameter has the defaults, if this process owns none.
        self._inner = make(owned or [nn.Parameter(torch.empty(0))])
        self._before = before
        self._after = after
        self._kept = kept
        super().__init__(parameters, dict(self._inner.defaults))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update on all processes. Closures, which would run backward again, are not supported."""
        if closure is not None:
            raise TypeError("a central optimizer takes no closure: gradients have been exchanged before the update")
        self._before()
        if len(self.param_groups) == len(self._inner.param_groups):
            for outer, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
                inner.update({name: value for name, value in outer.items() if name != "params"})
        self._inner.step()
        self._after()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero kept gradients; treat other gradients like any optimizer."""
        if not self._kept:
            super().zero_grad(set_to_none)
        for gradients in self._kept:
            gradients.zero_()


def owners(sizes: list[int], count: int) -> list[int]:
    """Assign variables to `count` owners, the largest first, each to the owner with the least so far."""
    load = [0] * count
    owner = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        owner[index] = load.index(min(load))
        load[owner[index]] += sizes[index]
    return owner
