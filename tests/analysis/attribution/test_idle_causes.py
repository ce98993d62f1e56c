"""Test causes of idle device time, with times in milliseconds of one window."""

from __future__ import annotations

import pytest

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.app.analyze import analyze
from gpudiag.model.analysis import BUCKETS
from gpudiag.units import NS_PER_MS
from tests.timeline_builder import BACKWARD, TraceBuilder
from tests.trace.documents import TRACES


def middle(*, cpu: bool = False) -> TraceBuilder:
    """Build a first step; later events belong to the next step, whose window is [0, 40) ms."""
    trace = TraceBuilder(unit_ns=NS_PER_MS).step(-9)
    return (trace.operator(0, 1) if cpu else trace.compute(0, 1)).step(0)


def buckets(trace: TraceBuilder, *, cpu: bool = False) -> dict[str, int]:
    trace.step(40)
    timeline = build_timeline([(trace.operator(0, 1) if cpu else trace.compute(0, 1)).build()])
    (track,) = attribute(timeline).tracks
    # The adjacent steps may become windows too, if they have as many ops as the tested step.
    window = track.buckets_ns[timeline.tracks[0].window_steps.tolist().index(1)].tolist()
    return {bucket: value // NS_PER_MS for bucket, value in zip(BUCKETS, window, strict=True) if value}


def test_loader_of_the_training_thread_is_input() -> None:
    trace = middle().compute(0, 5).loader(5, 25).operator(25, 30).compute(30, 40, launch=(28, 30))
    assert buckets(trace) == {"compute": 15, "input": 20, "launch": 5}


def test_loader_while_the_device_is_busy_costs_nothing() -> None:
    assert buckets(middle().loader(2, 30).compute(0, 40)) == {"compute": 40}


def test_gap_before_an_op_launched_early_is_idle() -> None:
    """The host runs ahead and already fetches its next batch, so the loader does not cause the gap."""
    trace = middle().compute(0, 10, launch=(0, 1)).compute(15, 40, launch=(1, 2)).loader(4, 30)
    assert buckets(trace) == {"compute": 35, "idle": 5}


def test_gap_during_the_launch_call_is_launch() -> None:
    assert buckets(middle().compute(0, 10).compute(15, 40, launch=(8, 14))) == {"compute": 35, "launch": 5}


def test_synchronization_includes_late_launches() -> None:
    """`.item()` blocks for 10 ms, in which the device runs out of work; the host needs 8 ms to launch again."""
    trace = middle().compute(0, 10).operator(0, 12, "aten::item").sync(2, 12, "cudaStreamSynchronize")
    trace.operator(12, 18).compute(18, 40, launch=(17, 18))
    assert buckets(trace) == {"compute": 32, "sync": 8}


def test_catching_up_lasts_at_most_as_long_as_the_block() -> None:
    """The host is blocked for 3 ms and then launch-bound for 20 ms; without the block the gap would be 3 ms shorter."""
    trace = middle().compute(0, 10).sync(7, 10).operator(10, 30).compute(30, 40, launch=(29, 30))
    assert buckets(trace) == {"compute": 20, "sync": 3, "launch": 17}


def test_catching_up_ends_when_the_host_runs_ahead_again() -> None:
    trace = middle().compute(0, 10).sync(0, 10).compute(12, 20, launch=(10, 11)).compute(20, 25, launch=(11, 12))
    trace.operator(15, 33).compute(33, 40, launch=(32, 33))
    assert buckets(trace) == {"compute": 30, "sync": 2, "launch": 8}


@pytest.mark.parametrize(
    ("name", "call", "blocks"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", True),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync", False),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpy", True),
        ("CopyDeviceToHost", "hipMemcpyWithStream", True),
    ],
)
def test_launch_time_after_a_blocking_copy_is_sync(name: str, call: str, blocks: bool) -> None:
    """The call returns when the copy ends (at 14 ms), and the next launch takes 6 ms more."""
    trace = middle().compute(0, 10).copy(10, 14, name, launch=(1, 14), call=call)
    trace.operator(14, 20).compute(20, 40, launch=(19, 20))
    assert buckets(trace) == {"compute": 30, "copy": 4, "sync" if blocks else "launch": 6}


def test_input_is_attributed_to_launching_and_training_threads_only() -> None:
    """Backward runs on a separate thread. A loader on a third thread does not count as the job's input."""
    trace = middle().compute(0, 10).by(77).loader(10, 30).by(BACKWARD).operator(12, 20)
    trace.compute(20, 40, launch=(19, 20))
    assert buckets(trace) == {"compute": 30, "idle": 2, "launch": 8}


def test_gap_without_a_known_launch_is_idle() -> None:
    trace = middle().compute(0, 10).operator(10, 20).compute(20, 40, launch=None)
    assert buckets(trace) == {"compute": 30, "idle": 10}


def test_untraced_time_before_first_op_is_unmarked_input() -> None:
    trace = (
        middle()
        .compute(0, 30, launch=(0, 1))
        .step(40)
        .operator(30, 36)
        .compute(36, 40, launch=(35, 36))
        .step(90)
        .compute(0, 1)
    )
    (track,) = attribute(build_timeline([trace.build()])).tracks
    assert (track.unmarked_input.end - track.unmarked_input.start).sum() == 30 * NS_PER_MS


def test_profiler_overhead_is_neither_compute_nor_launch() -> None:
    """The profiler event "Command Buffer Full" delays the host from 12 to 18 ms while the device has no work."""
    trace = middle().compute(0, 10).operator(10, 20).overhead(12, 18).compute(20, 40, launch=(19, 20))
    assert buckets(trace) == {"compute": 30, "launch": 4, "idle": 6}


def test_profiler_overhead_does_not_replace_input_or_synchronization() -> None:
    trace = middle().compute(0, 10).loader(10, 15).sync(15, 20).overhead(10, 20).compute(20, 40, launch=20)
    assert buckets(trace) == {"compute": 30, "input": 5, "sync": 5}


def test_profiler_overhead_during_device_work_costs_nothing() -> None:
    assert buckets(middle().compute(0, 40).overhead(5, 30)) == {"compute": 40}


def test_gaps_within_a_cuda_graph_are_idle() -> None:
    trace = middle().graph((0, 1), (1, 10), (12, 20), (25, 40)).operator(5, 30)
    assert buckets(trace) == {"compute": 32, "idle": 7}


def test_gaps_are_attributed_per_device() -> None:
    trace = TraceBuilder(unit_ns=NS_PER_MS)
    trace.steps(
        3, 40, lambda s: s.on(0).compute(0, 40).on(1).compute(0, 10).operator(10, 30).compute(30, 40, launch=30)
    )
    first, second = attribute(build_timeline([trace.build()])).tracks
    assert first.buckets_ns[0, BUCKETS.index("compute")] == 40 * NS_PER_MS
    assert second.buckets_ns[0, BUCKETS.index("launch")] == 20 * NS_PER_MS


def test_cpu_track_has_compute_transfer_input_and_idle() -> None:
    """Top-level ops are compute, gloo's thread communicates, the loader is input, and a pause is idle."""
    trace = middle(cpu=True).loader(0, 6).operator(6, 20, "aten::conv2d").operator(8, 12, "aten::mm")
    trace.operator(20, 21, "c10d::allreduce_").gloo(21, 30).operator(31, 38, "Optimizer")
    assert buckets(trace, cpu=True) == {"compute": 21, "communication_transfer": 10, "input": 6, "idle": 3}


def test_loader_on_a_cpu_track_is_input() -> None:
    """Without workers the batch is collated on the training thread, under the loader's range."""
    trace = middle(cpu=True).loader(0, 10).operator(2, 9, "aten::stack").operator(10, 40, "aten::mm")
    assert buckets(trace, cpu=True) == {"compute": 30, "input": 10}


def test_hidden_communication_is_not_in_a_bucket() -> None:
    trace = middle().compute(0, 40).collective(10, 35).step(40).compute(0, 1)
    (track,) = attribute(build_timeline([trace.build()])).tracks
    assert track.hidden_ns.tolist() == [25 * NS_PER_MS]
    assert track.buckets_ns[0, BUCKETS.index("compute")] == 40 * NS_PER_MS


def test_catching_up_is_distributed_over_following_gaps() -> None:
    """The host is blocked for 8 ms while the device works; the next gaps are 3, 3 and 4 ms, each limited by
    launches."""
    trace = middle().compute(0, 10).sync(2, 10).operator(10, 40)
    trace.compute(13, 15, launch=(12, 13)).compute(18, 20, launch=(17, 18)).compute(24, 40, launch=(23, 24))
    assert buckets(trace) == {"compute": 30, "sync": 8, "launch": 2}


def test_catching_up_ends_at_the_next_block() -> None:
    """The host is blocked for 8 ms, and later from 14 to 15 ms.

    The first block causes the gap from 10 to 14 ms, and the second block causes 1 ms of the gap from 15 to 20 ms.
    """
    trace = middle().compute(0, 10).sync(2, 10).operator(10, 14).compute(14, 15, launch=(13, 14)).sync(14, 15)
    trace.operator(15, 20).compute(20, 40, launch=(19, 20))
    assert buckets(trace) == {"compute": 31, "sync": 5, "launch": 4}


@pytest.mark.parametrize(("since", "sync", "launch"), [(2, 9, 0), (4, 7, 2)])
def test_catching_up_begins_at_the_end_of_the_block(since: int, sync: int, launch: int) -> None:
    """The device is idle from 5 ms on, and the host is blocked until 8 ms.

    The block causes 3 ms of idle time, and catching up causes the next 3 ms."""
    trace = middle().compute(0, 5).sync(since, 8).operator(8, 14).compute(14, 40, launch=(13, 14))
    bucket_ms = buckets(trace)
    assert (bucket_ms["compute"], bucket_ms["sync"], bucket_ms.get("launch", 0)) == (31, sync, launch)


def test_time_before_a_long_block_is_not_launch() -> None:
    """A launch takes less than 10 ms.

    If the host is blocked for 10 ms or more after a launch, the op's delay is no launch time.
    """

    def gap(blocked: int) -> dict[str, int]:
        trace = middle().compute(0, 2).compute(5 + blocked, 40, launch=(3, 4))
        return buckets(trace.sync(4, 4 + blocked, "hipMemcpyWithStream"))

    # The last millisecond before the op starts is the time to catch up after the call.
    assert gap(20) == {"compute": 17, "idle": 1, "launch": 1, "sync": 21}
    assert gap(9) == {"compute": 28, "idle": 1, "launch": 10, "sync": 1}


def test_real_decoding_step_waits_in_one_copy() -> None:
    (device,) = analyze([TRACES / "others" / "sglang_decode.json.gz"]).devices
    assert device.buckets_ms["sync"] == pytest.approx(463.7, abs=0.5)
    assert device.buckets_ms["launch"] < 1
