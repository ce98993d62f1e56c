"""Test that the workload, the framework and unread accelerators are read from a trace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpudiag.analysis.timeline import build_timeline
from gpudiag.app.analyze import analyze
from gpudiag.errors import NotATraceError, UnreadableInputError
from gpudiag.model.event import framework_of, workload_of
from gpudiag.trace import read_traces
from tests.report.consoles import drawn
from tests.trace.documents import TRACES, document, event, kernel, launch, read_one, write
from tests.trace.readers.xspace.spaces import SpaceBuilder

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = TRACES / "others"


@pytest.mark.parametrize(
    ("path", "framework", "workload"),
    [
        ("others/sglang_decode.json.gz", "pytorch", "inference"),
        ("others/h100_falcon.json.gz", "pytorch", "inference"),
        ("others/mtia_inference.json.gz", "pytorch", "inference"),
        ("others/jax_conv.xplane.pb.gz", "jax", "inference"),
        ("public/benchmark_result_alexnet.json.gz", "pytorch", "inference"),
        ("public/triton_example.json.gz", "pytorch", "unknown"),
        ("public/nccl_data.json.gz", "pytorch", "training"),
        ("public/sampled_rank-1.json.gz", "pytorch", "training"),
        ("public/kineto_2021_resnet50_workers4.pt.trace.json.gz", "pytorch", "training"),
        ("public/mi250_minitoy_train_ROCm6_2_kineto.json.gz", "pytorch", "training"),
        ("clean", "pytorch", "training"),
        ("gloo_dataloader", "pytorch", "training"),
        ("jax/clean.xplane.pb.gz", "jax", "training"),
        ("tensorflow", "tensorflow", "training"),
        ("tensorflow_exchange/cpu-reduce.xplane.pb.gz", "tensorflow", "training"),
    ],
)
def test_workload_of_real_recordings_is_recognized(path: str, framework: str, workload: str) -> None:
    traces = read_traces([TRACES / path])
    assert {(trace.framework, trace.workload) for trace in traces} == {(framework, workload)}


@pytest.mark.parametrize(
    "name",
    [
        "autograd::engine::evaluate_function: MulBackward0",
        "CompiledFunctionBackward",
        "aten::convolution_backward",
        "Optimizer.step#AdamW.step",
        "FSDP::post_backward",
        "## backward ##",
    ],
)
def test_backward_operators_and_optimizers_are_training(tmp_path: Path, name: str) -> None:
    trace = read_one(tmp_path, document(event("cpu_op", "aten::mm", 0, 5), event("cpu_op", name, 6, 5)))
    assert trace.workload == "training"


@pytest.mark.parametrize("name", ["aten::mm", "forward_backward_func", "torch::jit::BackwardCompatible_x"])
def test_similar_names_are_no_backward_pass(tmp_path: Path, name: str) -> None:
    trace = read_one(tmp_path, document(event("cpu_op", "aten::mm", 0, 5), event("user_annotation", name, 6, 5)))
    assert trace.workload == "inference"


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >", "training"),
        ("cunn_SoftMaxBackward<4, float>", "training"),
        ("sm90_xmma_wgrad_implicit_gemm_indexed_tf32f32", "training"),
        ("sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32", "training"),
        ("fused_dropout_kernel_vec<float, lambda()#1>", "unknown"),
        ("sm80_xmma_fprop_implicit_gemm_f16f16", "unknown"),
    ],
)
def test_kernels_alone_prove_training_and_never_inference(tmp_path: Path, name: str, workload: str) -> None:
    assert read_one(tmp_path, document(launch(0, 1), kernel(name, 5, 5, 1))).workload == workload


def test_transposed_convolutions_of_a_forward_pass_are_not_training(tmp_path: Path) -> None:
    operator = event("cpu_op", "aten::conv_transpose2d", 0, 5)
    convolution = kernel("sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32", 5, 5, 1)
    assert read_one(tmp_path, document(operator, launch(1, 1), convolution)).workload == "inference"


def test_job_trains_if_any_rank_does() -> None:
    (trace,) = read_traces([OTHERS / "h100_falcon.json.gz"])
    others = [replace(trace, workload=kind) for kind in ("unknown", "inference", "training")]
    assert workload_of(others[:1]) == "unknown"
    assert workload_of(others[:2]) == "inference"
    assert workload_of(others) == "training"
    assert framework_of([replace(trace, framework="unknown"), trace]) == "pytorch"


def test_events_of_other_programs_have_unknown_framework(tmp_path: Path) -> None:
    trace = read_one(tmp_path, [launch(0, 1), kernel("gemm", 5, 5, 1)])
    assert trace.framework == "unknown"
    assert read_one(tmp_path, document(launch(0, 1), kernel("gemm", 5, 5, 1))).framework == "pytorch"


def test_trace_of_unknown_framework_joins_any_job(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [launch(0, 1), kernel("gemm", 5, 5, 1)])
    write(tmp_path / "rank1.json", document(event("cpu_op", "aten::mm", 0, 5)))
    assert [trace.framework for trace in read_traces([tmp_path])] == ["unknown", "pytorch"]


@pytest.mark.parametrize("directory", ["others", "public2"])
def test_jax_gets_no_advice_for_tensorflow(directory: str) -> None:
    analysis = analyze([TRACES / directory / "jax_conv.xplane.pb.gz"])
    assert (analysis.framework, analysis.device_kind) == ("jax", "gpu")
    advice = [line for finding in analysis.findings for line in finding.advice]
    texts = " ".join([*advice, *(warning.message for warning in analysis.validity)])
    assert "tf." not in texts
    assert "torch" not in texts
    assert "jax.profiler.StepTraceAnnotation" in texts
    report = drawn(analysis, 100, full=True)
    assert report.startswith("JAX inference · ")
    assert not re.search(r"TensorFlow|\btf\.|torch", report)


def test_amd_devices_have_names() -> None:
    assert read_traces([OTHERS / "jax_conv.xplane.pb.gz"])[1].device_names == {1: "AMD GPU with 304 compute units"}
    # ROCm gives the GPU's agent the number 9, but the only described GPU has the number 0.
    assert read_traces([OTHERS / "sglang_decode.json.gz"])[0].device_names == {9: "AMD Instinct MI300X"}


def test_devices_of_different_models_are_named_only_by_number(tmp_path: Path) -> None:
    devices = [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}]
    content = document(
        launch(0, 1), kernel("gemm", 5, 5, 1, device=1), launch(9, 2), kernel("gemm", 15, 5, 2, device=7)
    )
    assert read_one(tmp_path, content | {"deviceProperties": devices}).device_names == {1: "B"}


def test_unread_accelerator_gets_no_verdict() -> None:
    (trace,) = read_traces([OTHERS / "mtia_inference.json.gz"])
    assert trace.unread_devices == ("MTIA",)
    analysis = analyze([OTHERS / "mtia_inference.json.gz"])
    assert (analysis.device_kind, analysis.devices, analysis.findings) == ("unread", (), ())
    (message,) = [warning.message for warning in analysis.validity if warning.code == "missing-device-activity"]
    assert "an accelerator whose activity gpudiag does not read (MTIA)" in message
    assert "CUDA" not in message


@pytest.mark.parametrize(
    ("events", "unread"),
    [
        ([event("hpu_op", "gemm", 5, 5)], ("HPU",)),
        ([event("privateuse1_kernel", "gemm", 5, 5)], ("PRIVATEUSE1",)),
        ([event("privateuse1_runtime", "launch", 5, 5)], ("PRIVATEUSE1",)),
        ([event("cpu_op", "npu::npu_format_cast", 5, 5)], ("NPU",)),
        ([launch(1, 1), kernel("gemm", 5, 5, 1), event("mtia_runtime", "launch", 5, 5)], ()),
        ([launch(1, 1), event("xpu_runtime", "launch", 5, 5)], ()),
        ([event("cpu_op", "aten::conv2d", 5, 5)], ()),
    ],
)
def test_accelerators_are_recognised_by_categories_calls_and_operators(
    tmp_path: Path, events: list[dict[str, object]], unread: tuple[str, ...]
) -> None:
    trace = read_one(tmp_path, document(event("cpu_op", "aten::mm", 0, 5), *events))
    assert trace.unread_devices == unread


def test_error_names_accelerator_if_only_its_events_were_recorded(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", document(event("mtia_ccp_events", "pe_exe", 5, 5)))
    with pytest.raises(UnreadableInputError, match="activity of MTIA only") as caught:
        read_traces([path])
    assert not isinstance(caught.value, NotATraceError)


def test_gpus_beside_unread_accelerator_are_diagnosed(tmp_path: Path) -> None:
    events = [launch(1, 1), kernel("gemm", 5, 5, 1), event("hpu_op", "gemm", 5, 5)]
    trace = read_one(tmp_path, document(event("cpu_op", "aten::mm", 0, 5), *events))
    assert trace.unread_devices == ("HPU",)
    assert [track.device for track in build_timeline([trace]).tracks] == [0]


def test_tpu_planes_are_unread_accelerator(tmp_path: Path) -> None:
    built = SpaceBuilder()
    built.thread(1).event("PjitFunction(step)", 0, 100)
    plane = built.space.planes.add(name="/device:TPU:0")
    plane.event_metadata[1].id = 1
    plane.event_metadata[1].name = "fusion"
    plane.lines.add(id=1, name="XLA Ops").events.add(metadata_id=1, offset_ps=0, duration_ps=1000)
    path = built.write(tmp_path / "a.xplane.pb")
    (trace,) = read_traces([path])
    assert (trace.framework, trace.unread_devices) == ("jax", ("TPU",))
    analysis = analyze([path])
    assert (analysis.device_kind, analysis.devices) == ("unread", ())
    (message,) = [warning.message for warning in analysis.validity if warning.code == "missing-device-activity"]
    assert "(TPU)" in message
    assert "a.xplane.pb" in message
    report = drawn(analysis, 100)
    assert report.startswith("JAX recording · TPU (not read)")
    assert "gpudiag cannot read the activity of TPU" in report
    assert not re.search(r"\bGPUs?\b|\bCPUs?\b", report)


def test_error_names_file_that_has_planes_of_tpus_only(tmp_path: Path) -> None:
    built = SpaceBuilder()
    plane = built.space.planes.add(name="/device:TPU:0")
    plane.lines.add(id=1, name="XLA Modules").events.add(metadata_id=1, offset_ps=0, duration_ps=1000)
    path = built.write(tmp_path / "a.xplane.pb")
    with pytest.raises(UnreadableInputError, match=r"a\.xplane\.pb has activity of TPU only"):
        read_traces([path])


def test_cpu_only_recording_is_of_a_cpu() -> None:
    assert analyze([TRACES / "gloo_dataloader"]).device_kind == "cpu"
    assert analyze([TRACES / "public" / "rank_non_gpu.json.gz"]).device_kind == "cpu"
    assert analyze([TRACES / "public" / "nccl_data.json.gz"]).device_kind == "gpu"


@pytest.mark.parametrize(
    ("name", "workload"),
    [("jit(step)/transpose(jvp(main))/dot_general", "training"), ("jit(step)/jvp(main)/dot_general", "inference")],
)
def test_transposed_operation_proves_jax_training(tmp_path: Path, name: str, workload: str) -> None:
    built = SpaceBuilder()
    built.thread(1).event("PjitFunction(step)", 0, 100).event("cuLaunchKernel", 1, 2, correlation_id=1)
    built.gpu(0, 7).event("fusion", 5, 9, correlation_id=1, tf_op=name)
    (trace,) = read_traces([built.write(tmp_path / "a.xplane.pb")])
    assert (trace.framework, trace.workload) == ("jax", workload)
