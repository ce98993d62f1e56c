"""Find a job's grid of ranks: the roles of its process groups, and the position of each rank in its groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import prod

import numpy as np

from gpudiag.analysis.parallelism.roles import described_role, role_in_use, words_of
from gpudiag.model.parallelism import ROLES, GroupRole
from gpudiag.model.timeline import DeviceTrack, Timeline

_Ranks = tuple[int, ...]


@dataclass(frozen=True)
class RankGrid:
    """The grid of a job.

    Attributes:
        sizes: role → size of its dimension, without sizes of 1, from the outermost to the innermost dimension.
        stated: whether the descriptions of the process groups state all roles in use.
        role_of_group: rank → name of its group → role.
        position: rank → role → index of the rank in its group.
    """

    sizes: dict[GroupRole, int]
    stated: bool
    role_of_group: dict[int, dict[str, GroupRole]]
    position: dict[int, dict[GroupRole, int]]

    @property
    def stages(self) -> int:
        """Return the number of pipeline stages; 1 without a pipeline."""
        return self.sizes.get("pipeline", 1)

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank; 0 without a pipeline."""
        return self.position.get(rank, {}).get("pipeline", 0)


@dataclass(frozen=True)
class _Group:
    """A process group with its description and its numbers of calls by operation, over all its recorded ranks."""

    ranks: _Ranks
    description: str
    operations: Counter[str]

    @property
    def role(self) -> GroupRole:
        return role_in_use(described_role(self.description), self.operations)


def find_grid(timeline: Timeline) -> RankGrid | None:
    """Return the grid; None if ranks differ only in their data, or if nothing is known about the groups."""
    if not timeline.divides_work:
        return None
    groups = _groups(timeline)
    role_of_group: dict[int, dict[str, GroupRole]] = defaultdict(dict)
    for (name, ranks), group in groups.items():
        for rank in ranks:
            role_of_group[rank][name] = group.role
    in_use = {key: group for key, group in groups.items() if group.role != "unknown"}
    along = _simplest(in_use)
    sizes = {role: max(len(group.ranks) for group in of_role) for role, of_role in along.items()}
    for role in _of_all_ranks(in_use, timeline.world_size):
        # A group of all ranks spans the other dimensions too: divide the number of ranks by the sizes of the others.
        others = prod(size for other, size in sizes.items() if other != role)
        if sizes.get(role) == timeline.world_size and others > 1 and timeline.world_size % others == 0:
            sizes[role] = timeline.world_size // others
    if not sizes or (set(sizes) <= {"data", "shard"} and prod(sizes.values()) >= timeline.world_size):
        return None
    position: dict[int, dict[GroupRole, int]] = defaultdict(dict)
    for role, of_role in along.items():
        for index, rank in ((index, rank) for group in of_role for index, rank in enumerate(group.ranks)):
            position[rank][role] = index % sizes[role]  # a group of all ranks is larger than the corrected size
    in_order = sorted(sizes, key=lambda role: -_stride(role, groups))
    return RankGrid(
        sizes={role: sizes[role] for role in in_order if sizes[role] > 1},
        stated=all(described_role(group.description) is not None for group in in_use.values()),
        role_of_group=dict(role_of_group),
        position=dict(position),
    )


def _simplest(groups: dict[tuple[str, _Ranks], _Group]) -> dict[GroupRole, list[_Group]]:
    """Return role → its groups along the fewest dimensions, because other groups combine several dimensions.

    Groups whose descriptions name no role are used only if the role has no other groups, because their dimensions are
    unknown.
    """
    by_role: dict[GroupRole, dict[int, list[_Group]]] = defaultdict(lambda: defaultdict(list))
    for group in groups.values():
        dimensions = sum(words_of(group.description).values()) or len(ROLES)
        by_role[group.role][dimensions].append(group)
    return {role: by_dimensions[min(by_dimensions)] for role, by_dimensions in by_role.items()}


def _groups(timeline: Timeline) -> dict[tuple[str, _Ranks], _Group]:
    """Return (name, ranks) → group, for groups of two or more ranks that communicate; unused groups are left out."""
    description: dict[tuple[str, _Ranks], str] = {}
    operations: dict[tuple[str, _Ranks], Counter[str]] = defaultdict(Counter)
    for track in timeline.tracks:
        known = {name: group for name, group in timeline.traces[track.trace].groups.items() if len(group.ranks) > 1}
        for name, group in known.items():
            description[name, group.ranks] = group.description
        for (operation, name), count in calls_by_group(track).items():
            if name in known:
                operations[name, known[name].ranks][operation] += count
    return {key: _Group(key[1], text, operations[key]) for key, text in description.items() if operations[key]}


def _of_all_ranks(groups: dict[tuple[str, _Ranks], _Group], world_size: int) -> list[GroupRole]:
    """Return the roles of the groups that contain all ranks and whose description states no role."""
    return [
        group.role
        for (_, ranks), group in groups.items()
        if len(ranks) == world_size and described_role(group.description) is None
    ]


def calls_by_group(track: DeviceTrack) -> dict[tuple[str, str], int]:
    """Return (operation, name of the group) → number of recorded calls."""
    counts = np.bincount(track.collectives.kind, minlength=len(track.collectives.kinds))
    calls: Counter[tuple[str, str]] = Counter()
    for (operation, group, _, _), count in zip(track.collectives.kinds, counts.tolist(), strict=True):
        calls[operation, group] += count
    return calls


def _stride(role: GroupRole, groups: dict[tuple[str, _Ranks], _Group]) -> int:
    """Return the largest distance between the first two ranks in a role's groups. It is larger in outer dimensions."""
    return max((ranks[1] - ranks[0] for (_, ranks), group in groups.items() if group.role == role), default=0)


def stages_by_process(timeline: Timeline) -> dict[int, int]:
    """Return the pipeline stage of each process, by the index of its trace; empty without a pipeline."""
    grid = find_grid(timeline)
    if grid is None or grid.stages < 2:
        return {}
    return {track.trace: grid.stage(track.rank) for track in timeline.tracks}
