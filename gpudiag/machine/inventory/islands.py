"""Islands: groups of GPUs in which each reaches each other directly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudiag.model.facts import Link


def reaches_directly(link: Link) -> bool:
    """True where one GPU of the pair may access the other's memory, over NVLink or PCIe."""
    return link.peer_access if link.peer_access is not None else link.lanes > 0


def find_islands(indices: Sequence[int], links: Iterable[Link]) -> tuple[tuple[int, ...], ...]:
    """The GPUs in groups, each GPU in exactly one, every pair of a group linked directly.

    GPUs are taken in order, and each joins the first island whose every member it reaches; NVLink is given precedence
    over PCIe, so that a bridged pair is not torn apart by a looser neighbour. On a hybrid cube mesh of eight this
    gives the two quads. Where the driver does not tell of peer access, a GPU is an island of its own.

    Args:
        indices: GPU indices.
        links: links between them; a missing one counts as no direct way.
    """
    direct = {frozenset((link.a, link.b)): link.lanes > 0 for link in links if reaches_directly(link)}
    islands: list[list[int]] = []
    for index in indices:
        fitting = [island for island in islands if all(frozenset((index, other)) in direct for other in island)]
        over_nvlink = [island for island in fitting if all(direct[frozenset((index, other))] for other in island)]
        chosen = next(iter(over_nvlink or fitting), None)
        if chosen is None:
            islands.append([index])
        else:
            chosen.append(index)
    return tuple(tuple(island) for island in islands)
