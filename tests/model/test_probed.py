"""Test which probed figures are compared with a job: those of its operation, transport, ranks and size."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.analysis import CollectiveSummary
from gpudiag.model.facts import Bandwidth, Collective, Facts, Gpu, Host
from gpudiag.model.probed import (
    beside_probe,
    gpu_of_rank,
    pinned_to_device,
    probed_busbw,
    probed_time_us,
    transport_of,
)
from gpudiag.model.run import RankRecord, RunRecord

MIB = 1 << 20


def measured(size: int, time_us: float, strategy: str = "nccl", **more: object) -> Collective:
    fields = {"operation": "all_reduce", "ranks": 4, "algbw_gb_per_s": 0.0, "busbw_gb_per_s": 0.0, "verified": True}
    return msgspec.convert({**fields, "strategy": strategy, "bytes": size, "time_us": time_us, **more}, Collective)


def facts(*collectives: Collective, **more: object) -> Facts:
    return Facts(host=Host(), collectives=collectives, **more)  # type: ignore[arg-type]  # any further field


def run(strategy: str = "nccl", device: str = "cuda:{}", nodes: int = 1, **more: object) -> RunRecord:
    """Return the record of a job of four ranks with `strategy` on `device`, a text in which the rank replaces `{}`."""
    ranks = tuple(
        RankRecord(rank=i, local_rank=i, host="a", pid=1, device=device.format(i), device_name="") for i in range(4)
    )
    base = RunRecord(
        created="",
        command=(),
        workload="x",
        framework="pytorch",
        strategy=strategy,
        world_size=4,
        nodes=nodes,
        batch_size_per_device=1,
        ranks=ranks,
        status="complete",
    )
    return msgspec.structs.replace(base, **more)


H200 = facts(measured(1024, 24), measured(65536, 24), measured(MIB, 26), measured(32 * MIB, 173))


class TestTimes:
    def test_measured_size_has_its_measured_time(self) -> None:
        assert probed_time_us(H200, "all_reduce", MIB, 4, "nccl") == 26
        # 2 x 3/4 x 1 MiB / 26 us
        assert probed_busbw(H200, "all_reduce", MIB, 4, "nccl") == pytest.approx(60.5, abs=0.05)

    def test_time_between_sizes_is_interpolated(self) -> None:
        # Interpolation between 1 and 32 MiB gives 40.2 us for 4 MiB (26 us plus 3/31 of the difference). The measured
        # time is 42.2 us.
        assert probed_time_us(H200, "all_reduce", 4 * MIB, 4, "nccl") == pytest.approx(40.2, abs=0.05)
        assert probed_time_us(H200, "all_reduce", 8192, 4, "nccl") == 24

    @pytest.mark.parametrize(
        ("operation", "size", "ranks", "transport"),
        [
            ("all_gather", MIB, 4, "nccl"),
            ("all_reduce", MIB, 2, "nccl"),
            ("all_reduce", MIB, 4, "nccl-no-p2p"),
            ("all_reduce", 512, 4, "nccl"),
            ("all_reduce", 64 * MIB, 4, "nccl"),
        ],
    )
    def test_unmeasured_transports_and_sizes_have_no_time(
        self, operation: str, size: int, ranks: int, transport: str
    ) -> None:
        assert probed_time_us(H200, operation, size, ranks, transport) is None
        assert probed_busbw(H200, operation, size, ranks, transport) is None

    def test_queued_times_take_precedence_over_launched_ones(self) -> None:
        both = facts(*H200.collectives, measured(65536, 13, "nccl-queued"))
        assert probed_time_us(both, "all_reduce", 65536, 4, "nccl") == 13

    def test_a_corrupted_result_has_no_time(self) -> None:
        assert probed_time_us(facts(measured(MIB, 26, verified=False)), "all_reduce", MIB, 4, "nccl") is None

    @given(st.integers(1024, 32 * MIB))
    def test_interpolated_time_lies_between_its_neighbours(self, size: int) -> None:
        time = probed_time_us(H200, "all_reduce", size, 4, "nccl")
        assert time is not None
        assert 24 <= time <= 173


class TestTransport:
    @pytest.mark.parametrize(
        ("record", "expected"),
        [
            (None, "nccl"),
            (run(), "nccl"),
            (run(options={"p2p": "off"}), "nccl-no-p2p"),
            (run("own", command=("gpudiag", "profile", "mine:main", "--no-p2p")), "nccl-no-p2p"),
            (run("gloo"), "gloo"),
            (run("own", device="cpu"), "gloo"),
        ],
    )
    def test_transport_follows_strategy_device_and_peer_access(self, record: RunRecord | None, expected: str) -> None:
        assert transport_of(record) == expected


def test_collectives_have_the_probed_bandwidth() -> None:
    common = {"group": "0", "ranks": 4, "per_step": 1.0, "transfer_us": 1.0, "wait_us": 0.0}
    sizes = (MIB, None, 512)
    jobs = [msgspec.convert({**common, "operation": "all_reduce", "size_bytes": n}, CollectiveSummary) for n in sizes]
    bandwidths = [collective.probe_busbw_gb_per_s for collective in beside_probe(jobs, H200, "nccl")]
    assert bandwidths == [pytest.approx(60.5, abs=0.05), None, None]
    assert beside_probe(jobs, None, "nccl") == tuple(jobs)


def test_pinned_copy_rate_is_of_single_gpus() -> None:
    def copy(dst: str, rate: float, memory: str = "pinned") -> Bandwidth:
        fields = {"path": "host_to_device", "src": "host", "direction": "one_way", "size_bytes": 1}
        return msgspec.convert({**fields, "dst": dst, "gb_per_s": rate, "memory": memory}, Bandwidth)

    copies = (copy("gpu:0", 55.0), copy("gpu:1", 54.0), copy("gpu:2", 12.0), copy("all", 190.0))
    assert pinned_to_device(facts(bandwidth=(*copies, copy("gpu:0", 9.0, "pageable")))) == 54.0
    assert pinned_to_device(facts()) is None


class TestGpuOfARank:
    machine = facts(gpus=tuple(Gpu(index=i, name="x", visible=i != 1) for i in range(5)))

    def test_gpu_of_rank_counts_visible_gpus(self) -> None:
        assert [gpu_of_rank(self.machine, run(), rank) for rank in range(5)] == [0, 2, 3, 4, None]

    def test_gpu_of_rank_follows_cuda_visible_devices(self) -> None:
        host = Host(environment={"CUDA_VISIBLE_DEVICES": "4,0,3,2"})
        assert gpu_of_rank(msgspec.structs.replace(self.machine, host=host), run(), 0) == 4

    def test_gpu_of_unknown_rank_is_none(self) -> None:
        assert gpu_of_rank(self.machine, run(nodes=2), 0) is None
        assert gpu_of_rank(self.machine, run(device="cpu"), 0) is None
        assert gpu_of_rank(self.machine, None, 0) is None
