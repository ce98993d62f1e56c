"""Test waits known from the trace's synchronization events, and their effect on the simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.timeline import OpClass
from gpudiag.trace import read_traces
from gpudiag.trace.with_operators import with_operators
from tests.trace.documents import Streams, read_one
from tests.traces.pack import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
    from gpudiag.model.event import Trace

WHOLE = Path(__file__).parents[3] / "traces" / "whole"
STEPS = 8
LENGTHS = st.integers(20, 400)
#: Time in µs by which hosts run ahead.
HOST = 10_000.0
STREAM, RECORD = "wait_on_stream", "wait_on_cuda_event_record_corr_id"


def recorded(step: Callable[[Streams], None], period: float, *, ahead: float = HOST) -> Streams:
    """Return the events of steps of `period` µs whose host runs ahead by `ahead` µs."""
    streams = Streams(ahead_us=ahead)
    for number in range(STEPS):
        streams.step(number, number * period, (number + 1) * period)
        step(streams)
    return streams


def simulation(trace: Trace) -> WhatIf:
    timeline = build_timeline([trace])
    what_if = Case(timeline=timeline, attribution=attribute(timeline)).what_if
    assert what_if is not None
    return what_if


def op_name(what_if: WhatIf, op: int) -> str:
    return what_if.timeline.traces[0].events.name_of(int(what_if.graph.device.row[op]))


def waits(what_if: WhatIf) -> dict[str, set[str]]:
    """Return op name → names of the ops that the op waits for."""
    device = what_if.graph.device
    found: dict[str, set[str]] = {}
    for column in (device.wait_a, device.wait_b):
        for op in np.flatnonzero(column != NONE).tolist():
            found.setdefault(op_name(what_if, op), set()).add(op_name(what_if, int(column[op])))
    return found


def step_us(what_if: WhatIf, lengths: dict[str, float] | None = None) -> float:
    """Return the step time in µs if the host takes no time and kernels take `lengths` (name → µs)."""
    measured = what_if.model.recorded
    duration = measured.duration.copy()
    for op in range(len(duration)):
        duration[op] = 1e3 * (lengths or {}).get(op_name(what_if, op), duration[op] / 1e3)
    nothing = np.zeros_like(measured.busy)
    return 1e3 * what_if.step_ms(replace(measured, busy=nothing, waiting=nothing, duration=duration))


def late_second_stream(streams: Streams, facts: Mapping[str, Any] = {}) -> None:
    """Run a step of 900 µs in which `b1` waits only for `a1`, but starts after `a3`, because `b0` occupies its stream.

    `facts` replaces arguments of the recorded wait. A line is a stream's number, and its kernels with their µs:

        7    a1 100 | a2 200 | a3 200 |                    waits for b1
        20   b0 520                      | b1 380          waits for a1

    Without b0, b1 runs from 100 to 480, so a step takes the 500 µs of stream 7. If b1 waited for a3, a step would take
    880 µs.
    """
    streams.launch(20, 520, "b0")
    streams.launch(7, 100, "a1")
    record = streams.record(7)
    streams.launch(7, 200, "a2")
    streams.launch(7, 200, "a3")
    streams.wait(20, record, facts)
    streams.launch(20, 380, "b1")
    done = streams.record(20)
    streams.wait(7, done)


def test_traced_wait_is_for_the_op_before_the_record(tmp_path: Path) -> None:
    what_if = simulation(read_one(tmp_path, recorded(late_second_stream, 900).document()))
    assert waits(what_if) == {"b1": {"a1"}, "a1": {"b1"}}
    assert step_us(what_if) == pytest.approx(900, abs=2)
    # b0 may start before a1 of the same step, because b0's stream does not wait for the previous step.
    assert step_us(what_if, {"b0": 0}) == pytest.approx(500, abs=5)


def test_inferred_wait_differs_without_traced_waits(tmp_path: Path) -> None:
    what_if = simulation(read_one(tmp_path, recorded(late_second_stream, 900).document(facts=False)))
    assert "a3" in waits(what_if)["b1"]
    assert step_us(what_if, {"b0": 0}) == pytest.approx(880, abs=5)


@pytest.mark.parametrize("facts", [{STREAM: -1}, {STREAM: None}])
def test_record_without_stream_follows_its_threads_last_launch(tmp_path: Path, facts: dict[str, Any]) -> None:
    content = recorded(lambda streams: late_second_stream(streams, facts), 900).document()
    assert waits(simulation(read_one(tmp_path, content))) == {"b1": {"a1"}, "a1": {"b1"}}


@pytest.mark.parametrize("facts", [{RECORD: -1, STREAM: -1}, {RECORD: 10**6}, {RECORD: "?", STREAM: 2**80}])
def test_wait_without_record_waits_for_earlier_launches(tmp_path: Path, facts: dict[str, Any]) -> None:
    content = recorded(lambda streams: late_second_stream(streams, facts), 900).document()
    assert waits(simulation(read_one(tmp_path, content))) == {"b1": {"a3"}, "a1": {"b1"}}


def test_launch_into_another_stream_does_not_wait(tmp_path: Path) -> None:
    def step(streams: Streams) -> None:
        streams.launch(7, 100, "a1")
        streams.wait(20, streams.record(7), {RECORD: -1, STREAM: -1})
        streams.launch(30, 50, "c1", thread=12)
        streams.launch(20, 100, "b1", thread=12)
        streams.wait(7, streams.record(20))

    content = recorded(step, 200)
    # The stream in which the event was recorded makes no difference.
    assert waits(simulation(read_one(tmp_path, content.document()))) == {"b1": {"a1", "c1"}, "a1": {"b1"}}


def test_stream_without_ops_passes_its_waits_on(tmp_path: Path) -> None:
    def step(streams: Streams) -> None:
        streams.launch(20, 300, "b0")
        streams.launch(7, 100, "a1")
        streams.wait(26, streams.record(7))
        streams.launch(7, 100, "a2")
        streams.wait(20, streams.record(26))
        streams.launch(20, 100, "b1")
        streams.wait(7, streams.record(20))

    what_if = simulation(read_one(tmp_path, recorded(step, 400).document()))
    assert waits(what_if) == {"b1": {"a1"}, "a1": {"b1"}}
    assert step_us(what_if, {"b0": 0}) == pytest.approx(200, abs=5)


def test_event_recorded_long_before_delays_nothing(tmp_path: Path) -> None:
    long_before: list[int] = []

    def step(streams: Streams) -> None:
        streams.launch(7, 300, "a1")
        long_before.append(streams.record(7))
        streams.wait(20, long_before[0])
        streams.launch(20, 100, "b1")

    what_if = simulation(read_one(tmp_path, recorded(step, 300).document()))
    assert step_us(what_if) == pytest.approx(300, abs=2)
    assert step_us(what_if, {"a1": 0}) == pytest.approx(100, abs=2)


def test_wait_after_the_last_op_of_its_stream_is_ignored(tmp_path: Path) -> None:
    streams = recorded(late_second_stream, 900)
    streams.wait(20, streams.record(7))
    streams.wait(77, streams.record(7))
    streams.wait(7, streams.record(77))
    assert waits(simulation(read_one(tmp_path, streams.document()))) == {"b1": {"a1"}, "a1": {"b1"}}


@pytest.mark.parametrize("number", [-(2**63), 2**63, 1e400, -3, "99999999999999999999", [1], {"a": 1}, None, 0.5])
def test_hostile_stream_numbers_change_no_step(tmp_path: Path, number: Any) -> None:
    facts = {RECORD: number, STREAM: number, "stream": number, "device": number, "correlation": number}
    if number == 1e400:  # JSON cannot represent infinity
        facts = dict.fromkeys(facts, float("inf"))
    content = recorded(lambda streams: late_second_stream(streams, facts), 900).document()
    what_if = simulation(read_one(tmp_path, content))
    assert what_if.simulated_ms == pytest.approx(0.9, rel=0.01)


def host_waits_for_the_first(streams: Streams, facts: Mapping[str, Any] = {}) -> None:
    """Make a host that waits for `a1` (100 µs) and then computes for 400 µs, while `a2` and `b1` run."""
    streams.launch(7, 100, "a1")
    record = streams.record(7)
    streams.launch(7, 60, "a2")
    streams.launch(20, 110, "b1")
    streams.now += 150
    streams.synchronize(record, facts)
    streams.now += 400


def test_host_waits_for_the_op_before_the_record(tmp_path: Path) -> None:
    def blocked_on(content: dict[str, Any]) -> set[str]:
        what_if = simulation(read_one(tmp_path, content))
        host = what_if.graph.host
        blocks = np.flatnonzero((host.block == HostBlock.SYNC) & (host.block_on != NONE)).tolist()
        assert len(blocks) >= STEPS - 3
        assert what_if.simulated_ms == pytest.approx(0.6, rel=0.01)
        return {op_name(what_if, int(host.block_on[node])) for node in blocks}

    streams = recorded(host_waits_for_the_first, 600, ahead=0)
    assert blocked_on(streams.document()) == {"a1"}
    assert blocked_on(streams.document(facts=False)) != {"a1"}


#: Commands of a step: (kind, stream, stream that a wait is for, length in µs).
COMMANDS = st.lists(
    st.tuples(st.sampled_from(["launch", "wait"]), st.sampled_from([7, 20, 26]), st.sampled_from([7, 20, 26]), LENGTHS),
    min_size=1,
    max_size=12,
)


def run(commands: list[tuple[str, int, int, int]], period: float) -> Streams:
    """Run steps that begin and end on stream 7.

    If stream A waits for stream B, then A waits for the ops that B received before B's last wait.
    """

    def step(streams: Streams) -> None:
        streams.launch(7, 50, "first")
        for other in (20, 26):
            streams.wait(other, streams.record(7))
        marks = {stream: streams.record(stream) for stream in (7, 20, 26)}
        for index, (what, stream, of, length) in enumerate(commands):
            if what == "launch":
                streams.launch(stream, length, f"k{index}")
            elif stream != of:
                streams.wait(stream, marks[of])
                marks[stream] = streams.record(stream)
        for other in (20, 26):
            streams.wait(7, streams.record(other))
        streams.launch(7, 50, "last")

    return recorded(step, period)


def pace(streams: Streams) -> float:
    """Return the time in µs between the last two steps."""
    ends = [event["ts"] + event["dur"] for event in streams.events if event["name"] == "last"]
    return float(ends[-1] - ends[-2])


@given(commands=COMMANDS, data=st.data())
def test_simulation_with_traced_waits_matches_execution(
    tmp_path_factory: pytest.TempPathFactory, commands: list[tuple[str, int, int, int]], data: st.DataObject
) -> None:
    before = pace(run(commands, 1))
    what_if = simulation(read_one(tmp_path_factory.mktemp("job"), run(commands, before).document()))
    assert 1e3 * what_if.simulated_ms == pytest.approx(before, rel=0.01)
    shorter = [(what, stream, of, data.draw(st.integers(0, length))) for what, stream, of, length in commands]
    lengths = {f"k{index}": float(length) for index, (_, _, _, length) in enumerate(shorter)}
    assert step_us(what_if, lengths) == pytest.approx(pace(run(shorter, 1)), abs=2)


@pytest.mark.long
@pytest.mark.parametrize(("recording", "within"), [("gpt-nccl", 0.01), ("gpt-nccl-light", 0.06)])
def test_ddp_on_two_h100_waits_twice_for_each_bucket(tmp_path: Path, recording: str, within: float) -> None:
    """On CUDA 13 the trace names only the waiting stream. For each bucket, NCCL's stream waits before it reduces the
    bucket, and the model's stream waits for the reduced bucket."""
    unpack(WHOLE / "exchanges" / f"{recording}.npz", tmp_path)
    timeline = build_timeline(read_traces([tmp_path]))
    what_if = Case(timeline=timeline, attribution=attribute(timeline)).what_if
    assert what_if is not None
    graph = what_if.graph
    waiting = graph.device.wait_a != NONE
    communication = graph.device.op_class == OpClass.COMMUNICATION
    buckets = 13 * graph.steps * len(graph.ranks)
    assert (waiting & communication).sum() == buckets
    assert (waiting & ~communication).sum() == buckets
    assert what_if.simulated_ms == pytest.approx(graph.length_ns / graph.steps / 1e6, rel=within)
    # An op starts when its last dependency ends. A missing dependency would appear as a long latency or gap.
    bound_ns = np.maximum(graph.device.latency, graph.device.gap)
    assert bound_ns[bound_ns > 50_000].sum() < 0.005 * graph.length_ns


@pytest.mark.long
def test_waits_follow_their_calls_when_operators_are_merged(tmp_path: Path) -> None:
    for name in ("gpt-nccl", "gpt-nccl-light"):
        unpack(WHOLE / "exchanges" / f"{name}.npz", tmp_path / name)
    light, full = (read_traces([tmp_path / name])[0] for name in ("gpt-nccl-light", "gpt-nccl"))
    joined = with_operators(light, full)
    assert joined is not None
    calls = [trace.events.start_ns[trace.event_waits.call] for trace in (light, joined)]
    assert len(calls[0]) > 200
    assert np.array_equal(calls[0], calls[1])
    assert {joined.events.name_of(row) for row in joined.event_waits.call.tolist()} == {"cudaStreamWaitEvent"}
