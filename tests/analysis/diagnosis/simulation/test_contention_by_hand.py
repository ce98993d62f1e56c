"""Test the contention of kernels during collectives, and probed transfer times, in graphs of a few ops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpudiag.analysis.diagnosis.rules import communication_bound
from gpudiag.analysis.diagnosis.rules.communication_advice import LargestCollective
from gpudiag.analysis.diagnosis.rules.communication_bound import CommunicationBound, _faster_transports, _parts
from gpudiag.analysis.diagnosis.simulation import counterfactuals
from gpudiag.analysis.diagnosis.simulation.contention import _kernels, _names, find_contention
from gpudiag.analysis.diagnosis.simulation.counterfactuals import with_pinned_copies, with_transport
from gpudiag.analysis.diagnosis.simulation.graph import NONE, recorded_scenario
from gpudiag.model.event import HostMemory
from gpudiag.model.timeline import UNKNOWN, OpClass
from tests.analysis.diagnosis.simulation.few_nodes import device_of, graph_of, host_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.analysis.diagnosis.simulation.graph import Graph

COMPUTE, COMMUNICATION, COPY = OpClass
Collective = tuple[int, int, int, float]
"""Start, last arrival (or UNKNOWN) and end of a collective in ns, and its share of the SMs (0 if unknown)."""


def timeline_of(*tracks: Sequence[Collective], names: Sequence[str] = "abcdef") -> Any:
    """Return a timeline of `tracks`, each with a trace; collectives begin at row 100, and `names` are by row."""
    of, traces = [], []
    for index, collectives in enumerate(tracks):
        start, arrival, end = (np.array([collective[at] for collective in collectives], np.int64) for at in range(3))
        rows = 100 + np.arange(len(collectives))
        kind, kinds = np.zeros(len(rows), np.int64), [("all_reduce", "0", 2, 1000)]
        table = SimpleNamespace(start=start, last_arrival=arrival, end=end, row=rows, kind=kind, kinds=kinds)
        of.append(SimpleNamespace(trace=index, collectives=table))
        calls = [SimpleNamespace(row=100 + at, processor_share=one[3] or None) for at, one in enumerate(collectives)]
        events = SimpleNamespace(names=tuple(names), name=np.arange(len(names)))
        traces.append(SimpleNamespace(collectives=calls, events=events))
    return SimpleNamespace(tracks=of, traces=traces, world_size=2)


def graph(
    *kernels: tuple[int, int], track: Sequence[int] | None = None, row: Sequence[int] | None = None, **more: Any
) -> Graph:
    """Return a graph of one stream with `kernels` (start, end) in ns; `more` are further columns."""
    count = len(kernels)
    device = device_of(
        start=[a for a, _ in kernels],
        end=[b for _, b in kernels],
        track=track or [0] * count,
        row=row or [0] * count,
        **more,
    )
    built = graph_of(host_of(time=[0]), device)
    return msgspec.structs.replace(built, streams=((0, count),))


def test_contention_counts_waiting_and_transferring_collectives() -> None:
    """The first collective waits from 10 to 20 ns and transfers until 40 ns. The last arrival at the second collective
    is unknown."""
    timeline = timeline_of([(10, 20, 40, 0.1), (60, UNKNOWN, 80, 0.2)])
    kernels = _kernels(graph((0, 30), (15, 70), (85, 90), (12, 18)), timeline)
    assert kernels.duration.tolist() == [30, 55, 5, 6]
    assert kernels.beside.tolist() == [20, 35, 0, 6]
    assert kernels.waiting.tolist() == [10, 5, 0, 6]
    # A waiting collective occupies its share of the SMs, and a transferring collective occupies 1.7 times its share.
    assert kernels.held.tolist() == pytest.approx([0.1 * (10 + 17), 0.1 * (5 + 34) + 0.2 * 17, 0, 0.6])
    assert kernels.free.tolist() == [False, False, True, False]


def test_contention_counts_kernels_and_collectives_of_one_device() -> None:
    timeline = timeline_of([(0, 0, 100, 0.0)], [(0, 0, 5, 0.5)])
    of = graph((0, 10), (0, 10), (0, 10), track=[0, 1, 1], op_class=[COMPUTE, COMPUTE, COPY])
    kernels = _kernels(of, timeline)
    assert (kernels.op.tolist(), kernels.beside.tolist()) == ([0, 1], [10, 5])
    assert kernels.held.tolist() == pytest.approx([0, 0.5 * 1.7 * 5])


def test_equal_names_in_several_traces_have_one_number() -> None:
    timeline = timeline_of([], [], names="ab")
    timeline.traces[1].events.names = ("b", "c")
    numbers = _names(graph((0, 1), (0, 1), (0, 1), (0, 1), track=[0, 0, 1, 1], row=[0, 1, 0, 1]), timeline)
    assert numbers[1] == numbers[2]
    assert len({*numbers.tolist()}) == 3


def disturbed(calm: int, slowed: int, *, wait: int = 0) -> tuple[float, float]:
    """Return (contention-free ns, waiting share) of a kernel of `slowed` ns that takes `calm` ns in another step.

    A collective runs beside the slowed kernel, and waits for the first `wait` ns.
    """
    timeline = timeline_of([(1000, 1000 + wait, 1000 + slowed, 0.0)])
    of = graph((0, calm), (1000, 1000 + slowed), step=[0, 1])
    contention = find_contention(msgspec.structs.replace(of, steps=2), timeline)
    assert np.isnan(contention.free_ns[0])
    return float(contention.free_ns[1]), float(contention.waiting_share[1])


def test_slowed_kernel_takes_duration_of_its_match_unless_slowed_too_much() -> None:
    assert disturbed(100, 150) == (100, 0)
    assert disturbed(100, 150, wait=30) == (100, 0.2)
    assert disturbed(100, 250) == (100, 0)
    assert np.isnan(disturbed(100, 251)[0])


def test_no_contention_without_slowed_kernels() -> None:
    contention = find_contention(graph((0, 10)), timeline_of([(20, 20, 30, 0.1)]))
    assert np.isnan(contention.free_ns).all()
    assert contention.removed_from(np.array([7.0])).tolist() == [7]


def exchanging(*transfers: float, track: Sequence[int] | None = None) -> Any:
    """Fake a what-if with collectives of `transfers` in ns and a kernel during them.

    Its attribute `gone` collects the shares of transfer time whose contention is removed.
    """
    count = len(transfers)
    device = device_of(
        start=[0] * count + [0], end=[*transfers, 50], transfer=[*transfers, np.nan],
        track=[*(track or [0] * count), 0],
        row=[*range(100, 100 + count), 0], op_class=[COMMUNICATION] * count + [COMPUTE],
    )  # fmt: skip
    of = graph_of(host_of(time=[0]), device)
    gone: list[Any] = []

    def transfer_removed_from(duration: Any, share: Any) -> Any:
        gone.append(share.tolist())
        return duration

    return SimpleNamespace(
        graph=of,
        timeline=timeline_of(*([(0, 0, 9, 0.0)] * count for _ in range(2))),
        model=SimpleNamespace(contention=SimpleNamespace(transfer_removed_from=transfer_removed_from)),
        corrected=recorded_scenario(of),
        gone=gone,
    )


def test_transfers_take_probed_time_and_contention_shrinks_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def probed(_: Any, *kind: Any) -> float | None:
        asked.append(kind)
        return 0.006

    monkeypatch.setattr(counterfactuals, "probed_time_us", probed)
    of = exchanging(10.0, 14.0)
    scenario = with_transport(of, of.corrected, None, "nccl")  # type: ignore[arg-type]  # the facts are not used
    assert scenario is not None
    assert scenario.transfer[:2].tolist() == [6, 6]
    assert of.gone == [[0.5, 0.5, 0.5]]
    assert asked == [("all_reduce", 1000, 2, "nccl")]
    of = exchanging(0.5, 0.7)
    monkeypatch.setattr(counterfactuals, "probed_time_us", lambda *_: 0.0001)
    assert with_transport(of, of.corrected, None, "nccl") is not None  # type: ignore[arg-type]
    assert of.gone[0] == pytest.approx([1 - 0.2 / 1.2] * 3)
    monkeypatch.setattr(counterfactuals, "probed_time_us", probed)
    # A probed transfer time longer than the recorded time is not used.
    of = exchanging(3.0)
    assert with_transport(of, of.corrected, None, "nccl") is not None  # type: ignore[arg-type]
    assert of.gone == [[0, 0]]
    monkeypatch.setattr(counterfactuals, "probed_time_us", lambda *_: None)
    assert with_transport(of, of.corrected, None, "nccl") is None  # type: ignore[arg-type]


def test_collectives_of_unknown_size_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counterfactuals, "probed_time_us", lambda *_: 0.001)
    of = exchanging(10.0, 14.0)
    of.timeline.tracks[0].collectives.kinds = [("all_reduce", "0", 2, None), ("all_reduce", "0", 0, 8)]
    of.timeline.tracks[0].collectives.kind = np.array([0, 1])
    scenario = with_transport(of, of.corrected, None, "nccl")  # type: ignore[arg-type]  # the facts are not used
    assert scenario is not None
    assert scenario.transfer[:2].tolist() == [10, 1]


def test_pageable_copies_run_at_measured_pinned_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    def pinned(size: Sequence[int], rate: float | None = 2.0) -> list[float] | None:
        """Return the durations of a pageable copy, a pinned copy and another op if pinned copies run at `rate` GB/s."""
        of = graph((0, 100), (0, 100), (0, 100), row=[0, 1, 2], host_copy=[True, True, False], launch=[NONE] * 3)
        timeline = timeline_of([])
        events = timeline.traces[0].events
        events.host_memory = np.array([HostMemory.PAGEABLE, HostMemory.PINNED, HostMemory.PAGEABLE])
        events.size_bytes = np.array(size)
        monkeypatch.setattr(counterfactuals, "pinned_to_device", lambda _: rate)
        monkeypatch.setattr(counterfactuals, "with_host_copies", lambda _, __, duration: duration)
        what_if: Any = SimpleNamespace(graph=of, timeline=timeline)
        scenario: Any = with_pinned_copies(what_if, recorded_scenario(of), None)  # type: ignore[arg-type]  # the facts are not used
        return None if scenario is None else [float(value) for value in scenario]

    assert pinned([80, 80, 80]) == [40, 100, 100]
    assert pinned([1, 80, 80]) == [0.5, 100, 100]
    assert pinned([-1, 80, 80]) is None
    assert pinned([0, 80, 80]) is None
    assert pinned([80, 80, 80], None) is None


def test_faster_transports_save_a_percent_and_are_sorted_by_savings(monkeypatch: pytest.MonkeyPatch) -> None:
    gains: dict[str, float | None] = {"a": 0.99, "b": 1.0, "c": 7.0, "d": None}
    monkeypatch.setattr(communication_bound, "transports", lambda _: gains)
    monkeypatch.setattr(communication_bound, "with_transport", lambda _, __, ___, name: gains[name])
    what_if: Any = SimpleNamespace(corrected=None, corrected_ms=100.0, saving_ms=lambda ms: ms)
    assert list(_faster_transports(SimpleNamespace(facts=1), what_if).items()) == [("c", 7.0), ("b", 1.0)]  # type: ignore[arg-type]
    assert _faster_transports(SimpleNamespace(facts=None), what_if) == {}  # type: ignore[arg-type]


def parts(patch: pytest.MonkeyPatch, *gains: float, gain: float = 10.0) -> dict[str, float]:
    """Return the components of `gain` ms of savings.

    `gains` are the savings of four scenarios, each of which removes one more cost than the previous one: host calls,
    transfer time, contention with transfers, and bucket copies.
    """
    for name, taken in (
        ("without_communication_calls", 2),
        ("without_transfer_time", 1),
        ("without_transfer", 2),
        ("without_bucket_copy", 2),
    ):
        patch.setattr(communication_bound, name, lambda *_, name=name, taken=taken: (name, taken))
    what_if: Any = SimpleNamespace(corrected=None, savings_ms=lambda _: list(gains))
    return _parts(what_if, gain)


def test_parts_of_savings_are_cumulative_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    components = parts(monkeypatch, 1.0, 4.0, 6.0, 9.0)
    assert (components["CPU calls"], components["exposed"], components["kernels slowed beside it"]) == (1, 3, 2)
    assert (components["copying buckets"], components["copies and waits"]) == (3, 1)
    assert list(components)[:3] == ["exposed", "copying buckets", "kernels slowed beside it"]
    # A scenario that saves less than the previous scenario adds nothing, and the components sum to at most the total.
    components = parts(monkeypatch, 5.0, 4.0, 12.0, 11.0)
    assert (
        components["CPU calls"],
        components["exposed"],
        components["kernels slowed beside it"],
        components["copies and waits"],
    ) == (
        5,
        0,
        5,
        0,
    )


def communication_finding(
    patch: pytest.MonkeyPatch,
    *,
    calls: float = 0.0,
    bucket_copy: float = 0.0,
    faster: dict[str, float] | None = None,
    doubtful: bool = False,
    largest: Any = None,
    nvlink: float | None = None,
    gain: float = 10.0,
    now: float = 100.0,
) -> Any:
    """Return the finding for two devices with transfers of 6 and 9 ms in two steps of 100 ms.

    In ms: `gain`, `calls` and `faster` are the savings of the finding, of removing host calls, and of each other
    transport; `bucket_copy` and `now` are the time of bucket copies and the step. `doubtful`: links may be slow.
    `nvlink`: GB/s of unused NVLink.
    """
    device = SimpleNamespace(
        transfer=np.array([np.nan, 2e6, 4e6, 9e6]),
        track=np.array([0, 0, 0, 1]),
        start=np.zeros(4),
        end=np.full(4, 4e6 * bucket_copy),
    )
    what_if: Any = SimpleNamespace(
        graph=SimpleNamespace(device=device, steps=2),
        model=SimpleNamespace(bucket_copy=np.array([True, False, False, False])),
        now_ms=now,
    )
    tracks = [SimpleNamespace(), SimpleNamespace()]
    case: Any = SimpleNamespace(
        tracks=tracks, run=None, facts=None, step_ms=100.0,
        timeline=SimpleNamespace(framework="pytorch", ranks_present=(0, 1), world_size=2),
        exposed_ms=lambda _: {0: 3.0},
    )  # fmt: skip
    patch.setattr(communication_bound, "largest_collective", lambda _, **__: largest)
    patch.setattr(communication_bound, "_parts", lambda *_: {"CPU calls": calls})
    patch.setattr(communication_bound, "_faster_transports", lambda *_: faster or {})
    patch.setattr(communication_bound, "transport_of", lambda _: "mine")
    patch.setattr(communication_bound, "links_in_doubt", lambda *_: doubtful)
    patch.setattr(communication_bound, "communication_advice", lambda _, *, by_calls: (f"by calls: {by_calls}",))
    patch.setattr(communication_bound, "unused_nvlink_gb_per_s", lambda *_: nvlink)
    return CommunicationBound()._describe(case, what_if, gain, 10.0)


def test_communication_finding_has_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = communication_finding(monkeypatch).evidence
    assert (evidence["collectives_per_step"], evidence["transfer_ms_per_step"]) == (3 / 4, 15 / 4)
    assert evidence["exposed_transfer_ms_by_rank"] == {0: 3.0}
    # The slower device transfers for 4.5 ms per step. With full overlap, only the excess of transfers over all other
    # work remains.
    assert evidence["savings_ms_with_full_overlap"] == 10
    assert communication_finding(monkeypatch, gain=98.0).evidence["savings_ms_with_full_overlap"] == 95.5
    assert "bucket_copies_ms_per_step" not in evidence
    assert "savings_ms_at_probed" not in evidence
    assert communication_finding(monkeypatch, faster={"p2p": 2.0}).evidence["savings_ms_at_probed"] == {"p2p": 2.0}
    assert communication_finding(monkeypatch, bucket_copy=1.0).evidence["bucket_copies_ms_per_step"] == 1.0


def test_communication_finding_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def advice(**of: Any) -> str:
        return " ".join(communication_finding(monkeypatch, **of).advice)

    assert [("by calls: True" in advice(calls=ms)) for ms in (5.0, 5.1)] == [False, True]
    assert [("Check the links" in advice(doubtful=True, calls=ms)) for ms in (0.0, 9.0)] == [True, False]
    assert "Check the links" not in advice()
    assert [("faster at these sizes in the probes" in advice(faster={name: 2.0})) for name in ("mine", "p2p")] == [
        False,
        True,
    ]
    assert [("gradient_as_bucket_view" in advice(bucket_copy=ms)) for ms in (0.99, 1.0)] == [False, True]
    assert "gradient_as_bucket_view" not in advice(bucket_copy=1.0, calls=9.0)
    of = LargestCollective(operation="all_reduce", size_bytes=8, ranks=2, median_ns=1e6, busbw_gb_per_s=1.0)
    assert "Turn on peer access" in communication_finding(monkeypatch, largest=of, nvlink=450.0).advice[0]
    assert communication_finding(monkeypatch, largest=of).evidence["largest_collective_transfer_ms"] == 1
    assert "nvlink_gb_per_s" not in communication_finding(monkeypatch, largest=of).evidence
