from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpudiag.machine.inventory.links import find_islands, reaches_directly
from gpudiag.model.facts import Link
from tests.machines import machine

PAIRS = [(a, b) for a in range(7) for b in range(a + 1, 7)]
LINKS = st.tuples(*(st.tuples(st.sampled_from([True, False, None]), st.sampled_from([0, 0, 2])) for _ in PAIRS)).map(
    lambda answers: tuple(
        Link(a=a, b=b, kind=f"NV{lanes}" if lanes else "PHB", lanes=lanes, peer_access=peer)
        for (a, b), (peer, lanes) in zip(PAIRS, answers, strict=True)
    )
)


@given(LINKS)
def test_each_gpu_is_in_one_island_and_reaches_all_gpus_of_the_island(links: tuple[Link, ...]) -> None:
    islands = find_islands(range(7), links)
    assert sorted(index for island in islands for index in island) == list(range(7))
    direct = {(link.a, link.b) for link in links if reaches_directly(link)}
    assert all((a, b) in direct for island in islands for a in island for b in island if a < b)


def test_recorded_machines_have_their_islands() -> None:
    assert machine("h200x4").islands == ((0, 1, 2, 3),)
    assert machine("dgx-1").islands == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert machine("7gforce-v2").islands == ((0, 3), (1, 2), (4,), (5, 6))
    assert machine("az-4x-m60").islands == ((0,), (1,), (2,), (3,))


def test_bridged_pair_stays_together() -> None:
    links = [Link(a=a, b=b, kind="PHB", peer_access=True) for a, b in ((0, 2), (0, 1))]
    bridged = Link(a=1, b=2, kind="NV4", lanes=4, peer_access=False)
    assert find_islands(range(3), [*links, bridged]) == ((0, 1), (2,))
    apart = [Link(a=0, b=2, kind="PHB", peer_access=True), Link(a=1, b=2, kind="NV4", lanes=4, peer_access=True)]
    assert find_islands(range(3), apart) == ((0,), (1, 2))
