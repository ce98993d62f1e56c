"""Test that collectives which are only as fast as a path through the host show unused NVLink."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpudiag.analysis.diagnosis.rules.communication_advice import unused_nvlink_gb_per_s
from gpudiag.app.analyze import analyze
from gpudiag.model.facts import Link
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.records import run_of
from tests.analysis.diagnosis.rule_examples.jobs import Job, all_reduce, kernels, update
from tests.analysis.diagnosis.rule_examples.machines import gpu, machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.analysis.diagnosis.case import Case

LARGE, SLOW = 64 << 20, 25.0
JOB = case_of(Job(ranks=2, step=(kernels(10), all_reduce(10), update(1))).traces())


def on(*names: str, case: Case = JOB) -> Case:
    """Return the case on the devices `names`, one per rank, numbered as on one machine."""
    tracks = [
        msgspec.structs.replace(track, device_name=name, device=number)
        for number, (track, name) in enumerate(zip(case.timeline.tracks, names, strict=True))
    ]
    return replace(case, timeline=msgspec.structs.replace(case.timeline, tracks=tuple(tracks)))


H200S = on("NVIDIA H200", "NVIDIA H200")


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("NVIDIA H200", 450.0),
        ("NVIDIA H100 80GB HBM3", 450.0),
        ("NVIDIA A100-SXM4-80GB", 300.0),
        ("Tesla V100-SXM2-16GB", 150.0),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("", None),
    ],
)
def test_boards_that_always_have_nvlink_are_recognized(name: str, gb_per_s: float | None) -> None:
    assert unused_nvlink_gb_per_s(on(name, name), LARGE, 5.0) == gb_per_s


def test_ranks_on_several_machines_have_no_nvlink_finding() -> None:
    assert unused_nvlink_gb_per_s(H200S, LARGE, SLOW) is not None
    numbered_alike = msgspec.structs.replace(
        H200S.timeline, tracks=tuple(msgspec.structs.replace(track, device=0) for track in H200S.tracks)
    )
    assert unused_nvlink_gb_per_s(replace(H200S, timeline=numbered_alike), LARGE, SLOW) is None
    recorded = run_of(replace(H200S, timeline=numbered_alike), [10.0, 10.0])
    assert unused_nvlink_gb_per_s(recorded, LARGE, SLOW) is not None, "all ranks of the record have one host"
    assert recorded.run is not None
    apart = [msgspec.structs.replace(rank, host=f"host{rank.rank}") for rank in recorded.run.ranks]
    elsewhere = replace(recorded, run=msgspec.structs.replace(recorded.run, ranks=tuple(apart)))
    assert unused_nvlink_gb_per_s(elsewhere, LARGE, SLOW) is None


def test_single_or_missing_ranks_have_no_nvlink_finding() -> None:
    missing = msgspec.structs.replace(H200S.timeline, world_size=3)
    assert unused_nvlink_gb_per_s(replace(H200S, timeline=missing), LARGE, SLOW) is None
    alone = case_of(Job(ranks=2, step=(kernels(10), all_reduce(10), update(1)), recorded=(0,)).traces())
    assert unused_nvlink_gb_per_s(on("NVIDIA H200", case=alone), LARGE, SLOW) is None


def test_machine_without_nvlink_has_no_nvlink_finding() -> None:
    for lanes, found in ((18, 450.0), (0, None)):
        facts = machine(gpu(0), gpu(1), links=(Link(a=0, b=1, kind="SYS", lanes=lanes),))
        assert unused_nvlink_gb_per_s(replace(H200S, facts=facts), LARGE, SLOW) == found


@pytest.mark.parametrize(("name", "unused"), [("vgg_p2poff", True), ("clean", False)])
def test_recordings_with_and_without_peer_access_are_distinguished(
    name: str, *, unused: bool, whole_recording: Callable[[str], Path]
) -> None:
    findings = {finding.code: finding for finding in analyze([whole_recording(name)]).findings}
    found: Any = findings.get("communication-bound")
    assert found is not None or not unused
    if found is not None:
        assert ("nvlink_gb_per_s" in found.evidence) == unused
        assert ("NCCL_P2P_DISABLE" in found.advice[0]) == unused


@pytest.mark.parametrize(
    ("size", "busbw", "unused"),
    [(16 << 20, 56.25, True), ((16 << 20) - 1, 56.25, False), (16 << 20, 56.3, False)],
)
def test_only_slow_large_collectives_show_unused_nvlink(size: int, busbw: float, *, unused: bool) -> None:
    assert (unused_nvlink_gb_per_s(H200S, size, busbw) is not None) == unused


def test_slowest_known_board_sets_the_nvlink_limit() -> None:
    assert unused_nvlink_gb_per_s(on("NVIDIA H200", "NVIDIA A100-SXM4-80GB"), LARGE, 5.0) == 300.0
    assert unused_nvlink_gb_per_s(on("NVIDIA H200", "a board"), LARGE, 5.0) is None
