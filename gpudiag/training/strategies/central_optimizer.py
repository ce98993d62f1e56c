"""An optimizer that updates parameters somewhere else, and brings them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn


class CentralOptimizer(torch.optim.Optimizer):
    """Looks like the optimizer of the model's parameters, and lets another one do the work on those of this process.

    Learning-rate schedulers work on it as on any other: what they set is passed on before each step.

    Args:
        parameters: the model's.
        make: makes an optimizer of given parameters.
        owned: those that this process updates: the masters, which need not be the model's tensors. May be empty.
        before: called before each update; it puts gradients into the masters.
        after: called after each update; it brings all parameters back into the model.
        kept: the gradients' memory where that is what is exchanged, so that it is zeroed and never given up.
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
        # One of an empty parameter is made where this process has none, to know the defaults.
        self._inner = make(owned or [nn.Parameter(torch.empty(0))])
        self._before = before
        self._after = after
        self._kept = kept
        super().__init__(parameters, dict(self._inner.defaults))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update, on all processes. Closures, which would run backward again, are not supported."""
        if closure is not None:
            raise TypeError("a central optimizer takes no closure: gradients have been exchanged before the update")
        self._before()
        if len(self.param_groups) == len(self._inner.param_groups):
            for mine, theirs in zip(self.param_groups, self._inner.param_groups, strict=True):
                theirs.update({name: value for name, value in mine.items() if name != "params"})
        self._inner.step()
        self._after()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As any optimizer; memory that is kept is zeroed."""
        if not self._kept:
            super().zero_grad(set_to_none)
        for gradients in self._kept:
            gradients.zero_()


def owners(sizes: list[int], count: int) -> list[int]:
    """Which of `count` owners has each variable: the largest first, each to whoever has least so far."""
    load = [0] * count
    owner = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        owner[index] = load.index(min(load))
        load[owner[index]] += sizes[index]
    return owner
