"""Test merging operators into steps that differ in some calls: the operators must still enclose their launches."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.model.event import EventKind, Trace
from gpudiag.trace.same_calls import _longest_common
from gpudiag.trace.with_operators import SAME_STEPS, with_operators
from tests.trace.documents import document, event, kernel, read_one

if TYPE_CHECKING:
    from pathlib import Path

LONG = ["embed", "gemm", "norm", "gemm", "add", "gemm", "norm", "gemm", "split", "add", "loss"]
SHORT = ["embed", "gemm", "norm", "gemm", "add", "gemm", "norm", "gemm", "add", "tail", "loss"]
MANY = [f"k{index % 7}" for index in range(20)]
POLLS = ["cudaEventQuery", "cudaStreamIsCapturing", "cudaMalloc", "cudaEventQuery", "cudaEventRecordWithFlags"]
STEP_US = 10_000


class Recording:
    """Steps that launch kernels. A full trace has an operator around each launch, and an operator around the step.

    The time between calls, `apart` in µs, is longer in a full trace, because operators slow the host down. `steps` and
    `correlation` are the numbers of the last step and of the last call.
    """

    def __init__(self, *, full: bool, thread: int = 11) -> None:
        self.full, self.thread = full, thread
        self.apart = 200 if full else 100
        self.steps = 0
        self.correlation = 0
        self.events: list[dict[str, Any]] = []

    def step(self, *calls: str, size: int | None = None) -> Recording:
        """Add a step with `calls`.

        Names that begin with `cuda` are runtime calls, all other names are launched kernels.
        """
        begin = STEP_US * self.steps
        self.steps += 1
        first, last = begin + self.apart, begin + self.apart * len(calls)
        self.events.append(event("user_annotation", f"ProfilerStep#{self.steps}", begin, last + 100 - begin))
        if self.full:
            self.events.append(event("cpu_op", "model", first - 30, last - first + 70, tid=self.thread))
        for index, name in enumerate(calls):
            self._call(name, first + self.apart * index, size)
        return self

    def beside(self, *calls: str) -> Recording:
        """Add calls of a second thread to the last step, outside of any operator."""
        at = STEP_US * (self.steps - 1)
        self.events += [event("cuda_runtime", name, at + 7 * i, 1, tid=99) for i, name in enumerate(calls, 1)]
        return self

    def read(self, directory: Path) -> Trace:
        return read_one(directory, document(*self.events), f"{'full' if self.full else 'light'}/rank0.json")

    def _call(self, name: str, at: float, size: int | None) -> None:
        """Add a runtime call or launch at `at` µs; `size` is the number of elements of a collective."""
        self.correlation += 1
        call = name if name.startswith("cuda") else "cudaLaunchKernel"
        arguments = {"correlation": self.correlation}
        self.events.append(event("cuda_runtime", call, at, 2, tid=self.thread, args=arguments))
        if call == name:
            return
        described = {"Collective name": "allreduce", "In msg nelems": size, "dtype": "Float"}
        details = described if size and self.full else {}
        self.events.append(kernel(name, at + 20, 30, self.correlation, **details))
        if self.full:
            self.events.append(event("cpu_op", f"aten::{name.split('_', maxsplit=1)[0]}", at - 20, 40, tid=self.thread))


def joined(directory: Path, light: Recording, full: Recording) -> Trace | None:
    """Return the kernel-only trace with the operators of the full trace, and check that calls are unchanged."""
    before = light.read(directory)
    merged = with_operators(before, full.read(directory))
    if merged is not None:
        for kind in (EventKind.RUNTIME, EventKind.KERNEL):
            was, now = before.events.rows_of(kind), merged.events.rows_of(kind)
            for column in ("start_ns", "end_ns", "correlation", "thread"):
                assert np.array_equal(getattr(before.events, column)[was], getattr(merged.events, column)[now])
        assert (np.diff(merged.events.start_ns) >= 0).all()
        assert_nested(merged)
    return merged


def assert_nested(trace: Trace) -> None:
    """Assert that operators are inside their step and inside `model`, and that no two operators overlap partly."""
    events = trace.events
    marks = trace.step_marks[0].row
    spans = [(int(events.start_ns[row]), int(events.end_ns[row])) for row in marks]
    opened: list[int] = []
    for row in events.rows_of(EventKind.OPERATOR).tolist():
        begin, end = int(events.start_ns[row]), int(events.end_ns[row])
        assert any(a <= begin <= end <= b for a, b in spans)
        while opened and opened[-1] <= begin:
            opened.pop()
        assert all(end <= outer for outer in opened)
        opened.append(end)


def around(trace: Trace) -> Counter[tuple[str, str]]:
    """Count launches by (kernel, operator around the launch on its thread); `model` does not count as an operator."""
    events = trace.events
    launched = {int(events.correlation[row]): events.name_of(row) for row in events.rows_of(EventKind.KERNEL)}
    operators = [row for row in events.rows_of(EventKind.OPERATOR).tolist() if events.name_of(row) != "model"]
    counts: Counter[tuple[str, str]] = Counter()
    for call in events.rows_of(EventKind.RUNTIME).tolist():
        if (name := launched.get(int(events.correlation[call]))) is None:
            continue
        holds = [
            events.name_of(row)
            for row in operators
            if events.start_ns[row] <= events.start_ns[call] and events.end_ns[call] <= events.end_ns[row]
            if events.thread[row] == events.thread[call]
        ]
        assert len(holds) <= 1
        counts[name, holds[0] if holds else ""] += 1
    return counts


def each(*kernels: str, times: int = 1) -> Counter[tuple[str, str]]:
    """Return the count of `around` for `kernels` if each launch is inside an operator of the kernel's name."""
    return Counter({(name, f"aten::{name}"): times * count for name, count in Counter(kernels).items()})


def test_alternating_steps_get_operators_of_matching_steps(tmp_path: Path) -> None:
    light = Recording(full=False).step(*LONG).step(*SHORT).step(*LONG).step(*SHORT)
    full = Recording(full=True).step(*SHORT).step(*LONG).step(*SHORT).step(*LONG)
    merged = joined(tmp_path, light, full)
    assert merged is not None
    assert around(merged) == each(*LONG, *SHORT, times=2)


def test_collectives_get_sizes_of_matching_steps(tmp_path: Path) -> None:
    communication = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    light, full = Recording(full=False), Recording(full=True)
    for _ in range(2):
        light.step(*LONG, communication, size=1000).step(*SHORT, communication, size=10)
        full.step(*SHORT, communication, size=10).step(*LONG, communication, size=1000)
    merged = joined(tmp_path, light, full)
    assert merged is not None
    assert [call.size_bytes for call in merged.collectives] == [4000, 40, 4000, 40]


@pytest.mark.parametrize("more_in_kernel_only", [True, False])
def test_additional_kernel_moves_no_operator(tmp_path: Path, more_in_kernel_only: bool) -> None:
    more = [*LONG[:4], "reduce", *LONG[4:]]
    light = Recording(full=False).step(*(more if more_in_kernel_only else LONG)).step(*LONG)
    full = Recording(full=True).step(*(LONG if more_in_kernel_only else more))
    merged = joined(tmp_path, light, full)
    assert merged is not None
    assert around(merged) == each(*LONG, times=2) + Counter({("reduce", ""): int(more_in_kernel_only)})


def test_equal_calls_with_different_kernels_match(tmp_path: Path) -> None:
    here = [name.replace("gemm", "gemm_64x64") for name in LONG]
    there = [name.replace("gemm", "gemm_128x256") for name in LONG]
    merged = joined(tmp_path, Recording(full=False).step(*here, "sum"), Recording(full=True).step(*there))
    assert merged is not None
    assert around(merged)["gemm_64x64", "aten::gemm"] == 4
    assert around(merged)["sum", ""] == 1


def test_queries_and_allocations_are_ignored_in_matching(tmp_path: Path) -> None:
    """Polls precede calls at positions that change with each step, and most polls are missing in the full trace."""
    light, full = Recording(full=False), Recording(full=True)
    for index in range(3):
        polled = [call for position, name in enumerate(LONG) for call in (*POLLS[: (position + index) % 4], name)]
        light.step(*polled).beside(*POLLS * index)
        full.step(*(polled[:5] + [call for call in polled[5:] if call not in POLLS])).beside(*POLLS)
    merged = joined(tmp_path, light, full)
    assert merged is not None
    assert around(merged) == each(*LONG, times=3)


def test_threads_match_despite_different_numbers(tmp_path: Path) -> None:
    light = Recording(full=False, thread=1_207_957_184).step(*LONG).step(*SHORT)
    full = Recording(full=True, thread=2505).step(*LONG).step(*SHORT)
    merged = joined(tmp_path, light, full)
    assert merged is not None
    assert around(merged) == each(*LONG, *SHORT)


def on_pool(recording: Recording, *threads: int) -> Recording:
    """Run each step on a different thread of the pool of TensorFlow's executor."""
    for thread in threads:
        recording.thread = thread
        recording.step(*LONG).beside("cudaMemcpyAsync", "cudaMemsetAsync")
    return recording


def test_operators_match_if_an_executor_runs_steps_on_any_thread(tmp_path: Path) -> None:
    light, full = on_pool(Recording(full=False), 11, 12, 13, 12), on_pool(Recording(full=True), 12, 14, 14, 11)
    merged = joined(tmp_path, light, full)
    assert merged is not None
    assert around(merged) == each(*LONG, times=4)


def test_two_threads_with_equal_launches_keep_their_operators(tmp_path: Path) -> None:
    recordings = []
    for full in (False, True):
        two = on_pool(Recording(full=full, thread=11), 11, 11)
        # Thread 12 adds its calls to the same two steps. It launches equal kernels later, but not the last one.
        two.thread = 12
        two.steps = 0
        two.apart += 13
        marks = [each for each in two.events if each["cat"] == "user_annotation"]
        two.step(*LONG[:-1]).step(*LONG[:-1])
        two.events = [each for each in two.events if each["cat"] != "user_annotation" or each in marks]
        recordings.append(two)
    light, full_one = (each.read(tmp_path) for each in recordings)
    merged = with_operators(light, full_one)
    assert merged is not None
    events = merged.events
    operators = events.rows_of(EventKind.OPERATOR)
    by_thread = Counter(zip(events.thread[operators].tolist(), map(events.name_of, operators.tolist()), strict=True))
    assert by_thread[11, "aten::loss"] == 2
    assert by_thread[12, "aten::loss"] == 0


@pytest.mark.parametrize(("others", "usable"), [(3, True), (4, False)])
def test_full_trace_with_too_few_common_calls_is_refused(tmp_path: Path, others: int, usable: bool) -> None:
    """Test just below and just above the minimum share of common calls."""
    assert (20 - 3) / 20 >= SAME_STEPS > (20 - 4) / 20
    here = [*MANY[:-others], *(f"other{index}" for index in range(others))]
    light, full = Recording(full=False), Recording(full=True)
    for _ in range(3):
        light.step(*here)
        full.step(*MANY[:-others])
    assert (joined(tmp_path, light, full) is not None) == usable


def test_different_job_is_refused(tmp_path: Path) -> None:
    light = Recording(full=False).step(*LONG, *LONG).step(*LONG, *LONG)
    full = Recording(full=True).step(*MANY).step(*MANY)
    assert joined(tmp_path, light, full) is None


def test_steps_of_only_queries_do_not_match(tmp_path: Path) -> None:
    light, full = Recording(full=False).step(*POLLS), Recording(full=True).step(*POLLS)
    assert joined(tmp_path, light, full) is None


def test_longest_common_sequence_equals_brute_force() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        a, b = (random.integers(0, 4, random.integers(0, 30)).tolist() for _ in range(2))
        pairs = _longest_common(a, b)
        assert all(a[i] == b[j] for i, j in pairs)
        assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))
        longest = np.zeros((len(a) + 1, len(b) + 1), int)
        for i, value in enumerate(a):
            for j, other in enumerate(b):
                longest[i + 1, j + 1] = max(longest[i, j] + (value == other), longest[i, j + 1], longest[i + 1, j])
        assert len(pairs) == longest[-1, -1]
