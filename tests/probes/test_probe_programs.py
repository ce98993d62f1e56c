"""Run the probe programs on this machine's memory and processes, and on a fake CUDA driver.

The fake driver (fake_cuda/) has real memory and copies real bytes. The tests cover everything except time: which paths
are measured, that data is verified, and that a failure of one part does not affect the results of other parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpudiag.machine.probes.programs import (
    CollectivesResult,
    HostCopies,
    HostMemoryResult,
    PeerCopies,
    ProbeDocument,
    decode_document,
)

pytestmark = pytest.mark.processes

PROBES = Path(__file__).parents[2] / "probes"
FAKES = Path(__file__).parent / "fake_cuda"


def run(name: str, *arguments: str, **environment: str) -> ProbeDocument:
    """Run a probe program to its end, and return its result."""
    finished = subprocess.run(
        [sys.executable, str(PROBES / name), *arguments],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    assert finished.returncode == 0, finished.stderr.decode()
    return decode_document(finished.stdout)


def faked(name: str, *arguments: str, path: str = "", **options: Any) -> Any:
    where = os.pathsep.join(filter(None, [str(FAKES), path]))
    return run(name, "--seconds", "0.1", *arguments, PYTHONPATH=where, FAKE_CUDA=json.dumps(options))


class TestHostMemory:
    def test_every_numa_node_is_measured_and_verified(self) -> None:
        output = run("host_memory.py", "--mib", "16", "--seconds", "0.1", "--threads", "2")
        assert isinstance(output, HostMemoryResult)
        assert output.errors == ()
        assert output.bandwidth
        for copy in output.bandwidth:
            assert copy.wrong_words == 0
            assert copy.size_bytes == 16 << 20
            assert 0.05 < copy.gb_per_s < 10_000


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
class TestGloo:
    def test_two_processes_sum_and_verify(self) -> None:
        output = run("allreduce_gloo.py", "--quick", "--ranks", "2", "--seconds", "5")
        assert isinstance(output, CollectivesResult)
        assert output.errors == ()
        assert {collective.bytes for collective in output.collectives} >= {1 << 10, 1 << 16, 1 << 20}
        assert all(collective.wrong_values == 0 and collective.time_us > 0 for collective in output.collectives)

    @pytest.mark.apart
    def test_without_gpus_only_host_staged_all_reduce_fails(self) -> None:
        if shutil.which("nvidia-smi"):
            pytest.skip("this machine has a GPU")
        output = run("allreduce_gloo.py", "--quick", "--ranks", "2", "--strategies", "host-staged,gloo")
        assert isinstance(output, CollectivesResult)
        assert [error.what for error in output.errors] == ["host-staged all-reduce"]
        assert {collective.strategy for collective in output.collectives} == {"gloo"}


def test_dead_rank_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('broken installation')")
    output = run("allreduce_gloo.py", "--quick", "--ranks", "2", PYTHONPATH=str(tmp_path))
    assert [error.what for error in output.errors] == ["gloo all-reduce"]


class TestCopiesOnAFakeDriver:
    def test_host_paths_are_measured(self) -> None:
        output = faked("copy_host.py")
        assert isinstance(output, HostCopies)
        assert output.errors == ()
        paths = {(rate.memory, rate.path, rate.direction, rate.gpus) for rate in output.bandwidth}
        for memory in ("pinned", "pageable"):
            assert (memory, "host_to_device", "one_way", (0,)) in paths
            assert (memory, "device_to_host", "one_way", (1,)) in paths
            assert (memory, "host_to_device", "both_ways", (0, 0)) in paths
            assert (memory, "host_to_device", "both_ways", (0, 0, 1, 1)) in paths
            assert (memory, "device_to_host", "one_way", (0, 1)) in paths
        assert ("device", "device_to_device", "one_way", (0,)) in paths
        assert {rate.wrong_words for rate in output.bandwidth} == {0}
        assert {(measured.kind, measured.src, measured.dst) for measured in output.latency} == {
            ("small_copy", "host", "gpu"),
            ("small_copy", "gpu", "host"),
            ("dependent_load", "gpu", "host"),
            ("dependent_load", "gpu", "gpu"),
        }

    def test_peer_paths_are_measured_with_peer_access_off_and_on(self) -> None:
        output = faked("copy_peer.py")
        assert isinstance(output, PeerCopies)
        assert output.errors == ()
        paths = [(rate.src, rate.dst, rate.direction, rate.initiator, rate.peer_access) for rate in output.bandwidth]
        one_way = {(a, b, "one_way", who, True) for a, b in ((0, 1), (1, 0)) for who in ("src", "dst")}
        assert set(paths) >= one_way | {(0, 1, "both_ways", "dst", True), (0, 1, "one_way", "src", False)}
        access = [path[-1] for path in paths]
        assert access == sorted(access), "peer access stays on once it is on, so paths without peer access come first"

    def test_without_peer_access_only_staged_copies_are_measured(self) -> None:
        output = faked("copy_peer.py", "--quick", peer=False)
        assert {rate.peer_access for rate in output.bandwidth} == {False}
        assert "no peer access" in output.skipped[0].why

    @pytest.mark.parametrize("program", ["copy_host.py", "copy_peer.py"])
    def test_damaged_data_is_detected(self, program: str) -> None:
        output = faked(program, "--quick", corrupt=True)
        assert output.bandwidth
        assert all(rate.wrong_words > 0 for rate in output.bandwidth)

    def test_broken_path_does_not_affect_other_paths(self) -> None:
        output = faked("copy_host.py", "--quick", fail="cuMemcpyDtoHAsync")
        assert {rate.path for rate in output.bandwidth} == {"host_to_device", "device_to_device"}
        assert {rate.direction for rate in output.bandwidth} == {"one_way"}
        assert all("cuMemcpyDtoHAsync: CUDA_ERROR_INVALID_VALUE" in error.why for error in output.errors)

    @pytest.mark.parametrize("program", ["copy_host.py", "copy_peer.py"])
    def test_missing_memory_is_an_error(self, program: str) -> None:
        output = faked(program, fail="cuMemGetInfo")
        assert output.errors
        assert "cuMemGetInfo" in output.errors[0].why

    @pytest.mark.parametrize("program", ["copy_host.py", "copy_peer.py", "allreduce_nccl.py"])
    def test_missing_gpu_is_reported(self, program: str) -> None:
        assert "CUDA sees no GPU" in faked(program, devices=0).unavailable

    @pytest.mark.parametrize("program", ["copy_peer.py", "allreduce_nccl.py"])
    def test_copies_between_gpus_need_two_gpus(self, program: str) -> None:
        assert "need" in faked(program, devices=1).unavailable

    def test_rejected_kernels_leave_bandwidths_unverified(self) -> None:
        output = faked("copy_peer.py", "--quick", kernels=False)
        assert {rate.wrong_words for rate in output.bandwidth} == {None}
        assert any("cannot load this probe's kernels" in probe.why for probe in output.skipped)


def faked_session(*arguments: str, path: str = "", **options: Any) -> list[ProbeDocument]:
    """Run gpu_paths.py on the fake driver with `options`, and return the results of its parts."""
    where = os.pathsep.join(filter(None, [str(FAKES), path]))
    finished = subprocess.run(
        [sys.executable, str(PROBES / "gpu_paths.py"), "--seconds", "0.1", *arguments],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": where, "FAKE_CUDA": json.dumps(options)},
    )
    assert finished.returncode == 0, finished.stderr.decode()
    return [decode_document(line) for line in finished.stdout.splitlines()]


class TestSeveralPartsInOneProcess:
    def test_each_program_of_a_session_has_a_result_with_its_loading_phases(self) -> None:
        host, peer = faked_session("--quick", "--parts", "peer,host")
        assert isinstance(host, HostCopies)
        assert isinstance(peer, PeerCopies)
        assert {rate.wrong_words for rate in host.bandwidth} == {rate.wrong_words for rate in peer.bandwidth} == {0}
        assert [rate.peer_access for rate in peer.bandwidth] == [False, True, True]
        assert {"interpreter and imports", "driver", "contexts and kernels", "buffers"} <= set(host.phases_s)

    def test_failed_program_does_not_affect_other_programs(self) -> None:
        if find_spec("nvidia") is not None:
            pytest.skip("NCCL may be installed here")
        host, nccl = faked_session("--quick", "--parts", "host,nccl")
        assert host.unavailable is None
        assert "NCCL cannot be loaded" in (nccl.unavailable or "")

    def test_missing_memory_or_gpu_is_reported_once(self) -> None:
        host, peer = faked_session("--parts", "host,peer", fail="cuMemGetInfo")
        assert "cuMemGetInfo" in host.errors[0].why
        assert peer.errors == ()
        (nothing,) = faked_session("--parts", "host,peer", devices=0)
        assert "CUDA sees no GPU" in (nothing.unavailable or "")

    def test_single_gpu_has_no_peer(self) -> None:
        host, peer = faked_session("--quick", "--parts", "host,peer", devices=1)
        assert host.unavailable is None
        assert "two GPUs" in (peer.unavailable or "")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("site")
    target = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    target.parent.mkdir(parents=True)
    source = Path(__file__).with_name("fake_nccl.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(target), str(source)], check=True, timeout=60)
    return str(folder)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the fake library with")
class TestNcclOnAFakeLibrary:
    def test_all_strategies_are_measured_and_verified(self, library: str) -> None:
        output = faked("allreduce_nccl.py", "--quick", "--strategies", "nccl,nccl-ring", path=library)
        assert isinstance(output, CollectivesResult)
        assert output.errors == ()
        assert output.versions["nccl"] == "2.27.7"
        assert {(collective.strategy, collective.bytes) for collective in output.collectives} >= {
            ("nccl", 1 << 20),
            ("nccl-ring", 1 << 20),
        }
        assert {collective.wrong_values for collective in output.collectives} == {0}

    @pytest.mark.apart
    def test_small_messages_are_measured_launched_and_queued(self, library: str) -> None:
        output = faked("allreduce_nccl.py", "--quick", path=library)
        launched = {collective.bytes for collective in output.collectives if collective.strategy == "nccl"}
        queued = {collective.bytes for collective in output.collectives if collective.strategy == "nccl-queued"}
        assert queued == {size for size in launched if size <= 1 << 20}
        assert all(collective.time_us > 0 for collective in output.collectives)

    @pytest.mark.apart
    def test_nccl_is_the_last_part_of_a_session(self, library: str) -> None:
        documents = faked_session("--quick", "--parts", "nccl,host,peer", path=library)
        assert [type(document) for document in documents] == [HostCopies, PeerCopies, CollectivesResult]
        assert isinstance(documents[-1], CollectivesResult)
        assert {collective.wrong_values for collective in documents[-1].collectives} == {0}
        assert {"communicators", "connecting"} <= set(documents[-1].phases_s)

    def test_missing_memory_is_an_error(self, library: str) -> None:
        output = faked("allreduce_nccl.py", path=library, fail="cuMemGetInfo")
        assert [error.why for error in output.errors] == ["cuMemGetInfo: CUDA_ERROR_INVALID_VALUE"]

    def test_wrong_sum_is_detected(self, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAKE_NCCL", "wrong")
        output = faked("allreduce_nccl.py", "--quick", path=library)
        assert all(collective.wrong_values > 0 for collective in output.collectives)

    @pytest.mark.apart
    def test_failed_strategy_does_not_affect_other_strategies(
        self, library: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_NCCL_NO_TREE", "1")
        output = faked("allreduce_nccl.py", "--quick", "--strategies", "nccl-tree,nccl", path=library)
        assert {collective.strategy for collective in output.collectives} == {"nccl", "nccl-queued"}
        assert "ncclCommInitAll: fake failure" in output.errors[0].why


def test_without_nccl_the_reason_is_given() -> None:
    if find_spec("nvidia") is not None:
        pytest.skip("NCCL may be installed here")
    assert "NCCL cannot be loaded" in faked("allreduce_nccl.py", "--quick").unavailable


def test_without_cuda_bindings_the_reason_is_given(tmp_path: Path) -> None:
    blocked = tmp_path / "cuda"
    blocked.mkdir()
    (blocked / "__init__.py").write_text("raise ImportError('blocked')")
    output = run("copy_host.py", PYTHONPATH=str(tmp_path))
    assert output.unavailable is not None
    assert "cuda-bindings is not installed" in output.unavailable


def test_compiled_kernels_match_their_source() -> None:
    digest = hashlib.sha256((PROBES / "kernels.cu").read_bytes()).hexdigest()
    compiled = (PROBES / "kernels.ptx").read_text()
    assert digest in compiled.splitlines()[0], "run benchmarks/compile_kernels.py"


def test_host_and_device_agree_on_the_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first values of splitmix64 with seed 0, as its author's program prints them (https://prng.di.unimi.it/).
    monkeypatch.syspath_prepend(str(PROBES))
    shared = import_module("_pattern")

    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [int(word) for word in shared.pattern_words(0, 3)] == published
    pattern, words = shared.HostPattern(8 << 20), np.empty(1 << 20, dtype=np.uint64)
    pattern.fill(words, 12345)
    assert pattern.count_wrong(words, 12345) == 0
    words[77] ^= np.uint64(1)
    assert pattern.count_wrong(words, 12345) == 1
    assert pattern.count_wrong(words, 12346) == words.size


def test_rates_count_only_while_all_flows_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROBES))
    shared = import_module("_stopwatch")

    # The first flow takes 1 s per copy. The second flow takes 2 s for its first copy, and 1 s for its second copy,
    # which runs alone.
    assert shared.rates_while_all_run([[0, 1, 2], [0, 2, 3]], 10) == [10.0, 5.0]
    rows = iter([[100.0], [10.0], [10.0], [10.0], [10.0], [99.0]])
    settled = shared.repeat_until_settled(lambda: next(rows), least=4, most=9)
    assert (settled.median, settled.repeats) == (10.0, 5)
