"""Test ranges in the PyTorch profiler and NVTX, and their overhead without a listener."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
import timeit
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import gpudiag
from tests.cli_process import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def recorded(path: Path, profiler: profile) -> list[dict[str, object]]:
    target = path / "trace.json.gz"
    profiler.export_chrome_trace(str(target))
    events = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
    return [event for event in events if str(event.get("name", "")).startswith("gpudiag.") and event["ph"] == "X"]


def test_ranges_are_nested_user_annotations(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with gpudiag.range("outer"), gpudiag.range("inner"):
            torch.ones(2).sum()
        with gpudiag.range("numbered", number=7):
            pass
    events = {str(event["name"]): event for event in recorded(tmp_path, profiler)}
    assert set(events) == {"gpudiag.outer", "gpudiag.inner", "gpudiag.numbered#7"}
    assert {event["cat"] for event in events.values()} == {"user_annotation"}
    outer, inner = events["gpudiag.outer"], events["gpudiag.inner"]
    assert float(str(outer["ts"])) <= float(str(inner["ts"]))
    assert float(str(inner["dur"])) <= float(str(outer["dur"]))


def test_decorated_function_opens_range_per_call(tmp_path: Path) -> None:
    @gpudiag.range("work")
    def work(depth: int) -> int:
        return depth if depth == 0 else work(depth - 1)

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        assert work(2) == 0
    assert work.__name__ == "work"
    assert Counter(str(event["name"]) for event in recorded(tmp_path, profiler)) == {"gpudiag.work": 3}


def test_exception_closes_range_and_propagates(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with pytest.raises(ValueError, match="as planned"), gpudiag.range("failing"):
            raise ValueError("as planned")
        with gpudiag.range("after"):
            pass
    events = {str(event["name"]): event for event in recorded(tmp_path, profiler)}
    failing, after = events["gpudiag.failing"], events["gpudiag.after"]
    assert float(str(failing["ts"])) + float(str(failing["dur"])) <= float(str(after["ts"]))


def test_profiler_may_start_or_stop_inside_range() -> None:
    profiler = profile(activities=[ProfilerActivity.CPU])
    with gpudiag.range("across"):
        profiler.start()
        with gpudiag.range("inside"):
            profiler.stop()
    with gpudiag.range("later"):
        pass


def test_range_object_may_be_open_in_many_threads() -> None:
    shared = gpudiag.range("shared")
    together = threading.Barrier(4)
    failures: list[BaseException] = []

    def use() -> None:
        try:
            together.wait(SECONDS)
            for _ in range(200):
                with shared, shared:
                    pass
        except BaseException as error:  # noqa: BLE001  # reported by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert failures == []


def test_generator_and_coroutine_functions_are_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None:
        pass

    for function in (generator, coroutine):
        with pytest.raises(TypeError, match="inside its body"):
            gpudiag.range("suspended")(function)


def test_range_without_listener_costs_less_than_smallest_operation() -> None:
    one = torch.ones(1)

    def ranged() -> None:
        with gpudiag.range("cheap"):
            pass

    def operation() -> None:
        torch.nn.functional.linear(one, one)

    ranged()
    # Thread time excludes other programs, but other programs still slow the thread for a while. Therefore the two
    # variants alternate.
    turns = [
        [timeit.timeit(each, number=500, timer=time.thread_time) for each in (ranged, operation)] for _ in range(40)
    ]
    cost, least = (min(times) for times in zip(*turns, strict=True))
    assert cost < least


@pytest.mark.processes
def test_range_works_without_torch() -> None:
    program = "import sys, gpudiag\nwith gpudiag.range('x'): pass\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS)


@pytest.mark.processes
def test_nvtx_receives_ranges_when_tool_is_attached(tmp_path: Path) -> None:
    """NVTX loads the library in NVTX_INJECTION64_PATH; ranges then pass through it and must be balanced."""
    program = (
        "import nvtx, gpudiag\n"
        "from gpudiag.training.session import ranges\n"
        "with gpudiag.range('a'), gpudiag.range('step', number=3): pass\n"
        "print(type(ranges._domain).__name__, sorted(ranges._attributes))\n"
    )
    quiet = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert quiet.stdout.split()[0] == "DummyDomain"
    source, library = tmp_path / "listener.c", tmp_path / "listener.so"
    source.write_text("int InitializeInjectionNvtx2(void *get_table) { return get_table != 0; }\n")
    compiled = subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], capture_output=True, check=False)
    if compiled.returncode:
        pytest.skip("no C compiler to make a listener with")
    heard = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
        env={**os.environ, "NVTX_INJECTION64_PATH": str(library)},
    )
    assert heard.stdout.split()[0] == "Domain"
