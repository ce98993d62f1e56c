"""Define an optimizer for parameter servers, which update parameters on several devices or processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn


class CentralOptimizer(torch.optim.Optimizer):
    """An optimizer of all parameters of the model, which updates only the parameters that this process owns.

    An inner optimizer makes the update. Before each update, the settings of this optimizer are copied to the inner
    optimizer, because schedulers may have changed them.

    Args:
        parameters: the model's parameters.
        make: function that makes an optimizer of given parameters.
        owned: the parameters that this process updates, possibly none. Owned parameters may be copies of the model's.
        before: called before each update, to fill the gradients of `owned`.
        after: called after each update, to copy all updated parameters into the model.
        kept: tensors of gradients that are communicated. `zero_grad` zeroes these tensors instead of freeing them.
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
        # An optimizer needs a parameter. Use an empty parameter if this process owns none.
        self._inner = make(owned or [nn.Parameter(torch.empty(0))])
        self._before, self._after, self._kept = before, after, kept
        super().__init__(parameters, dict(self._inner.defaults))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters. Refuse a closure, because a closure would run backward again."""
        if closure is not None:
            raise TypeError("a central optimizer takes no closure: gradients have been exchanged before the update")
        self._before()
        # If `make` divides parameters into several groups, this optimizer has only one, and no settings are copied.
        if len(self.param_groups) == len(self._inner.param_groups):
            for outer, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
                inner.update({name: value for name, value in outer.items() if name != "params"})
        self._inner.step()
        self._after()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients in `kept`; if `kept` is empty, zero or free all gradients as usual."""
        if not self._kept:
            super().zero_grad(set_to_none)
        for gradients in self._kept:
            gradients.zero_()


def owners(sizes: list[int], count: int) -> list[int]:
    """Return the owner (0 to `count` - 1) of each variable, given the variables' sizes in any unit.

    Variables are assigned from large to small, each to the owner whose variables are smallest in total so far.
    """
    load = [0] * count
    owner = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        owner[index] = load.index(min(load))
        load[owner[index]] += sizes[index]
    return owner
