"""Define the input of all checks."""

from __future__ import annotations

from itertools import combinations

import msgspec

from gpudiag.model.checkup.surroundings import Surroundings
from gpudiag.model.facts import Facts, Gpu, Host, Link


class JobSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and the job that shall run on it.

    Attributes:
        facts: the inventory, with findings, and with rates of copies if they were tried.
        surroundings: readings besides the inventory: interpreter, CUPTI, permissions, CPUs, tried copies.
        ranks: number of training processes on this machine.
    """

    facts: Facts
    surroundings: Surroundings
    ranks: int

    @property
    def host(self) -> Host:
        """Return the host."""
        return self.facts.host

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that training processes see."""
        return tuple(gpu for gpu in self.facts.gpus if gpu.visible)

    @property
    def links(self) -> tuple[Link, ...]:
        """Return the links between GPUs that training processes see."""
        pairs = set(combinations(sorted(gpu.index for gpu in self.gpus), 2))
        return tuple(link for link in self.facts.links if (link.a, link.b) in pairs)

    @property
    def in_container(self) -> bool:
        """Return whether this process runs in a container."""
        return self.host.container is not None
