"""Test that each communication kernel becomes one call, whose facts come from all events of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.model.event import HOST
from gpudiag.trace import is_communication_kernel
from gpudiag.trace.readers.kineto.event_args import element_bytes
from gpudiag.trace.readers.names import kernel_operation, normal_operation
from tests.trace.documents import document, event, kernel, launch, read_one

if TYPE_CHECKING:
    from pathlib import Path

_NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        (_NCCL, "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_gather"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*)", "reduce"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*)", "all_to_all"),
        ("void dpsk::ep::internode::cached_notify<false>(int, int, int, int, int*)", "all_to_all"),
        ("void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*, int)", "all_to_all"),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)", None),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "all_to_all"),
        ("void deep_ep::intranode::barrier<8>(int**, int)", "barrier"),
        ("_ZN7deep_ep12internode_ll8dispatchILb1ELb0ELi7168EEEvPvS1_", "all_to_all"),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)", None),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("_ZN5aiter27cross_device_reduce_2stageIDF16bLi8EEEvPNS_8RankDataE", "all_reduce"),
        ("void aiter::allreduce_fusion_kernel_1stage<__hip_bfloat16, 8>(", "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<2>(", "all_reduce"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256EEEv", None),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(", None),
        ("ncclDevKernelDebug_Generic(ncclDevComm*, channelMasks, ncclWork*)", "unknown"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("void two_shot_all_reduce_kernel_inplace<float, 16>(float**)", "all_reduce"),
        ("multimem_all_gather_kernel", "all_gather"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", None),
        ("void at::native::vectorized_gather_kernel<16, long>", None),
        ("ampere_sgemm_128x64_tn", None),
        ("void deviceReduceSnapshot<int>", None),
        ("", None),
    ],
)
def test_collectives_are_recognized_by_kernel_name(name: str, operation: str | None) -> None:
    assert kernel_operation(name) == operation
    assert is_communication_kernel(name) is (operation is not None)


@pytest.mark.parametrize(
    ("word", "operation"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("nccl:all_reduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 1<-0", "recv"),
        ("gloo:barrier", "barrier"),
        ("coalesced", None),
        ("", None),
    ],
)
def test_collectives_are_recognized_by_operation_name(word: str, operation: str | None) -> None:
    assert normal_operation(word) == operation


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float", 4),
        ("BFloat16", 2),
        ("Long", 8),
        ("c10::Half", 2),
        ("Float8_e4m3fn", 1),
        ("unsigned char", 1),
        ("?", None),
    ],
)
def test_bytes_per_element_are_known_by_type(dtype: str, size: int | None) -> None:
    assert element_bytes(dtype) == size


def _recorded_arguments(operation: str, **more: Any) -> dict[str, Any]:
    """Return the arguments that PyTorch records with a collective; `more` changes or adds fields."""
    return {
        "Collective name": operation,
        "In msg nelems": 1000,
        "Out msg nelems": 4000,
        "dtype": "Float",
        "Group size": 4,
        "Process Group Name": "tp",
        "Process Group Ranks": "[0, 1, 2, 3]",
    } | more


@pytest.mark.parametrize(
    ("operation", "normal", "size"),
    [
        ("allreduce", "all_reduce", 4000),
        ("_allgather_base", "all_gather", 16000),
        ("_reduce_scatter_base", "reduce_scatter", 4000),
        ("broadcast", "broadcast", 4000),
    ],
)
def test_arguments_of_the_kernel_are_read(tmp_path: Path, operation: str, normal: str, size: int) -> None:
    trace = read_one(
        tmp_path, document(event("cpu_op", "x", 0, 1), kernel(_NCCL, 5, 9, 1, **_recorded_arguments(operation, Seq=17)))
    )
    (call,) = trace.collectives
    assert (call.row, call.operation, call.group, call.sequence) == (1, normal, "tp", 17)
    assert call.group_ranks == (0, 1, 2, 3)
    assert call.size_bytes == size


@pytest.mark.parametrize(
    ("name", "word", "operation", "size"),
    [
        ("ncclDevKernel_AllGather_RING_LL(x)", "coalesced", "all_gather", 16000),
        ("ncclDevKernel_SendRecv(x)", "all_to_all", "all_to_all", 4000),
        ("ncclDevKernel_Generic_4(x)", "allreduce", "all_reduce", 4000),
        ("ncclDevKernel_Generic_4(x)", "something_new", "something_new", 4000),
        ("ncclDevKernel_Generic_4(x)", "", "unknown", 4000),
    ],
)
def test_kernel_name_and_arguments_are_combined(
    tmp_path: Path, name: str, word: str, operation: str, size: int
) -> None:
    (call,) = read_one(tmp_path, document(kernel(name, 5, 9, 1, **_recorded_arguments(word)))).collectives
    assert (call.operation, call.size_bytes) == (operation, size)


def test_arguments_of_the_host_operator_are_read(tmp_path: Path) -> None:
    trace = read_one(
        tmp_path,
        document(
            event("cpu_op", "record_param_comms", 0, 20, args=_recorded_arguments("allreduce")),
            event("user_annotation", "nccl:all_reduce", 1, 18),
            launch(5, 1),
            kernel(_NCCL, 100, 9, 1),
            event(
                "cpu_op", "record_param_comms", 30, 20, args=_recorded_arguments("broadcast", **{"In msg nelems": 7})
            ),
            launch(60, 2),  # the launch follows the operator instead of being inside
            kernel(_NCCL, 120, 9, 2),
        ),
    )
    assert [(call.operation, call.group, call.size_bytes) for call in trace.collectives] == [
        ("all_reduce", "tp", 4000),
        ("all_reduce", "", None),
    ]


def test_messages_of_one_kernel_are_read_from_the_operators_before_its_range(tmp_path: Path) -> None:
    """PyTorch records each message of a batch, and launches their kernel in the range `nccl:coalesced` after them."""
    name = "ncclDevKernel_SendRecv(x)"

    def message(word: str, at: float, rank: int) -> dict[str, Any]:
        peer = {"Dst Rank" if word == "send" else "Src Rank": rank}
        return event("cpu_op", "record_param_comms", at, 2, args=_recorded_arguments(word, **peer))

    trace = read_one(
        tmp_path,
        document(
            message("send", 0, 1),
            event("user_annotation", "nccl:coalesced", 10, 10),
            launch(12, 1),
            kernel(name, 100, 9, 1),
            event("cpu_op", "record_param_comms", 30, 2, args=_recorded_arguments("wait")),
            message("send", 40, 1),
            message("recv", 44, 1),
            event("user_annotation", "nccl:coalesced", 50, 10),
            launch(52, 2),
            kernel(name, 120, 9, 2),
            message("send", 70, 1),
            message("recv", 74, 3),  # the peer differs from the send's peer
            event("user_annotation", "nccl:coalesced", 80, 10),
            launch(82, 3),
            kernel(name, 140, 9, 3),
        ),
    )
    assert [(call.operation, call.peer, call.group, call.size_bytes) for call in trace.collectives] == [
        ("send", 1, "tp", 4000),
        ("send_recv", 1, "tp", 8000),
        ("send_recv", None, "", None),
    ]


def test_shapes_of_an_old_range_are_read(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[1024], [2, 8], []], "Input type": ["float", "c10::Half", "Scalar"]}
    trace = read_one(
        tmp_path,
        document(
            event("user_annotation", "nccl:all_to_all", 0, 20, args=shapes),
            launch(5, 1),
            kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 100, 9, 1),
            event("user_annotation", "nccl:_all_gather_base", 30, 20, args=shapes),
            launch(35, 2),
            kernel("ncclKernel_AllGather_RING_LL_Sum_int8_t(x)", 120, 9, 2),
        ),
    )
    assert [(call.operation, call.size_bytes) for call in trace.collectives] == [
        ("all_to_all", 4096 + 32),
        ("all_gather", None),  # the output depends on the size of the group, which is unknown
    ]


def test_kernel_launched_before_recording_has_operation_by_name(tmp_path: Path) -> None:
    (call,) = read_one(tmp_path, document(kernel(_NCCL, 5, 9, 1))).collectives
    assert (call.operation, call.group, call.group_ranks, call.size_bytes) == ("all_reduce", "", (), None)


def test_truncated_rank_list_is_completed_from_the_header(tmp_path: Path) -> None:
    groups = [{"pg_name": "0", "ranks": list(range(64))}, {"pg_name": "tp", "ranks": list(range(32))}]
    trace = read_one(
        tmp_path,
        document(
            kernel(_NCCL, 5, 9, 1, **_recorded_arguments("allreduce", **{"Process Group Ranks": "[0, 1, 2, ...]"})),
            kernel(_NCCL, 25, 9, 2),
            distributedInfo={"rank": 0, "world_size": 64, "pg_config": groups},
        ),
    )
    described, undescribed = trace.collectives
    assert described.group_ranks == tuple(range(32))
    assert (undescribed.group, undescribed.group_ranks) == ("", ())  # the group is ambiguous, because there are two


def test_single_process_group_applies_to_all_collectives(tmp_path: Path) -> None:
    group = {"pg_name": "0", "ranks": [0, 1]}
    (call,) = read_one(
        tmp_path, document(kernel(_NCCL, 5, 9, 1), distributedInfo={"rank": 0, "world_size": 2, "pg_config": [group]})
    ).collectives
    assert (call.group, call.group_ranks) == ("0", (0, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"Collective name": 7, "dtype": [], "In msg nelems": "many", "Process Group Ranks": {"a": 1}, "Seq": "x"},
        {"In msg nelems": 10**400, "Group size": -4, "Seq": 2**70},
        {"Process Group Ranks": "[0, one]", "Process Group Name": 3, "Seq": -1},
        {"Process Group Ranks": [-1, "a"], "Input Dims": [["a"], 3, None], "Input type": [None, "float", "float"]},
        {"dtype": None, "Input Dims": [[2**60, 2**60]], "Input type": ["float"]},
    ],
)
def test_malformed_arguments_are_ignored(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (call,) = read_one(
        tmp_path, document(kernel(_NCCL, 5, 9, 1, **_recorded_arguments("allreduce", **wrong)))
    ).collectives
    assert call.operation == "all_reduce"
    assert call.sequence is None
    assert call.size_bytes in {None, 4000}


def test_gloo_ranges_on_cpus_are_host_collectives(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[2768]], "Input type": ["float"]}
    trace = read_one(
        tmp_path,
        document(
            event("cpu_op", "c10d::allreduce_", 0, 2),
            event("user_annotation", "gloo:all_reduce", 1, 900, tid=77, args=shapes),
        ),
    )
    (call,) = trace.collectives
    assert (trace.events.name_of(call.row), call.operation, call.size_bytes) == ("gloo:all_reduce", "all_reduce", 11072)


def test_nccl_ranges_without_device_work_are_no_collectives(tmp_path: Path) -> None:
    assert read_one(tmp_path, document(event("user_annotation", "nccl:all_reduce", 1, 9))).collectives == ()


def test_gloo_ranges_beside_device_work_are_host_collectives(tmp_path: Path) -> None:
    trace = read_one(tmp_path, document(event("user_annotation", "gloo:all_reduce", 1, 9), kernel("gemm", 2, 3, 1)))
    (call,) = trace.collectives
    assert (call.operation, int(trace.events.device[call.row])) == ("all_reduce", HOST)


def test_collectives_of_host_and_device_are_sorted_by_row(tmp_path: Path) -> None:
    trace = read_one(
        tmp_path,
        document(
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 2, 3, 1),
            event("user_annotation", "gloo:all_reduce", 6, 9),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 3, 2),
        ),
    )
    rows = [call.row for call in trace.collectives]
    assert len(rows) == 3
    assert rows == sorted(rows)


@pytest.mark.parametrize(
    ("blocks", "share"), [(0.181818, 0.181818), (2.5, 1.0), (None, None), (0, None), (-1, None), ("many", None)]
)
def test_share_of_sms_is_read_from_blocks_per_sm(tmp_path: Path, blocks: object, share: float | None) -> None:
    arguments: dict[str, Any] = {} if blocks is None else {"blocks per SM": blocks}
    trace = read_one(tmp_path, document(launch(10, 1), kernel(_NCCL, 30, 9, 1, **arguments)))
    (call,) = trace.collectives
    assert call.processor_share == share
