"""Test the throughput of kernel classes, compared with published peaks of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpudiag import analyze
from gpudiag.model.compute_rates import peak_memory_gb_per_s
from tests.trace.documents import TRACES, document, event, kernel, launch, write

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.compute_rates import ComputeClass

H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
GEMM, SIMT = "sm90_xmma_gemm_f32f32_tf32f32", "ampere_sgemm_32x32_tn"


def operator(name: str, start: float, shapes: Any, dtype: str) -> dict[str, Any]:
    """Return an operator of 10 µs with recorded shapes."""
    arguments = {"Input Dims": shapes, "Input type": [dtype] * len(shapes)}
    return event("cpu_op", name, start, 10, args=arguments)


def classes(directory: Path, *events: dict[str, Any], device: dict[str, Any] | None = None) -> dict[str, ComputeClass]:
    """Return the compute classes of three steps of 1000 µs, each with `events`."""
    steps = []
    for step in range(3):
        steps.append(event("user_annotation", f"ProfilerStep#{step}", 1000 * step, 990))
        for number, each in enumerate(events):
            moved = each | {"ts": each["ts"] + 1000 * step}
            if "correlation" in each.get("args", {}):
                moved["args"] = each["args"] | {"correlation": each["args"]["correlation"] + 100 * step}
            steps.append(moved)
            assert number < 100
    path = write(directory / "rank0.json", document(*steps, **(H100 if device is None else device)))
    return {row.kernel_class: row for row in analyze(path).compute_classes}


def test_one_operator_with_two_kernels_counts_once(tmp_path: Path) -> None:
    found = classes(
        tmp_path,
        operator("aten::mm", 10, [[1000, 1000], [1000, 1000]], "c10::BFloat16"),
        *(launch(12, 1), launch(15, 2)),
        *(kernel("nvjet_sm90_tst_128", 20, 10, 1), kernel("nvjet_sm90_tst_128", 30, 10, 2)),
    )["matmul"]
    assert found.tflops_per_s == pytest.approx(2e9 / 20e-6 / 1e12)
    assert found.gb_per_s == pytest.approx(6e6 / 20e-6 / 1e9)
    assert found.known_percent == 100
    assert found.peak_percent == pytest.approx(100 * 100 / 989)
    assert found.peak_source == "NVIDIA H100 datasheet (2022), SXM"


def test_work_counts_for_the_matrix_kernels_of_an_operator(tmp_path: Path) -> None:
    found = classes(
        tmp_path,
        operator("aten::bmm", 10, [[1, 1000, 1000], [1, 1000, 1000]], "c10::BFloat16"),
        *(launch(12, 1), launch(15, 2)),
        *(kernel("nchwToNhwcKernel", 20, 30, 1), kernel("nvjet_sm90_tst_128", 50, 10, 2)),
    )
    assert found["matmul"].tflops_per_s == pytest.approx(2e9 / 10e-6 / 1e12)
    assert found["layout-conversion"].known_percent is None


@pytest.mark.parametrize(("name", "peak"), [(GEMM, 494), (SIMT, 67), ("gemm", None)])
def test_peak_of_single_precision_depends_on_the_kernels_units(tmp_path: Path, name: str, peak: float | None) -> None:
    found = classes(
        tmp_path,
        operator("aten::mm", 10, [[1000, 1000], [1000, 1000]], "float"),
        launch(12, 1),
        kernel(name, 20, 100, 1),
    )["matmul"]
    assert found.tflops_per_s == pytest.approx(20)
    assert found.peak_percent == (None if peak is None else pytest.approx(100 * 20 / peak))


def test_known_percent_is_the_share_of_kernel_time_with_known_work(tmp_path: Path) -> None:
    found = classes(
        tmp_path,
        operator("aten::relu", 10, [[1000, 1000]], "float"),
        operator("mystery", 30, [[1000, 1000]], "float"),
        *(launch(12, 1), launch(32, 2)),
        kernel("vectorized_elementwise_kernel", 40, 10, 1),
        kernel("vectorized_elementwise_kernel", 50, 30, 2),
    )["elementwise"]
    assert (found.known_percent, found.tflops_per_s) == (25, None)
    assert found.gb_per_s == pytest.approx(800)
    assert found.peak_percent == pytest.approx(100 * 800 / 3350)


def test_peak_of_an_unknown_device_is_unknown(tmp_path: Path) -> None:
    found = classes(
        tmp_path,
        operator("aten::mm", 10, [[1000, 1000], [1000, 1000]], "c10::BFloat16"),
        launch(12, 1),
        kernel("nvjet_sm90_tst_128", 20, 10, 1),
        device={"deviceProperties": [{"id": 0, "name": "Fast GPU"}]},
    )["matmul"]
    assert found.tflops_per_s == pytest.approx(200)
    assert (found.peak_percent, found.peak_source) == (None, "")


def test_recording_reaches_the_rate_of_another_tools_table() -> None:
    """TraceLens' table of matrix products (GEMM.csv) has 5.5146 TFLOP without biases in 8 858.3 µs of kernels."""
    analysis = analyze(TRACES / "public2" / "h100_qwen_forward.json.gz")
    rows = {row.kernel_class: row for row in analysis.compute_classes}
    assert rows["matmul"].tflops_per_s == pytest.approx(5514.6e9 / 8858.3e-6 / 1e12, rel=1e-3)
    assert rows["matmul"].known_percent == 100
    assert rows["attention"].tflops_per_s == pytest.approx(90.29, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA H200", 4800),
        ("NVIDIA GH200 480GB", 4000),
        ("NVIDIA GH200 144G HBM3e", None),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-PCIE-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A10G", None),
        ("NVIDIA L40S", 864),
        ("Tesla V100-SXM2-32GB", 900),
        ("NVIDIA GeForce RTX 4090", 1008),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA H20-3e", None),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_peak_of_memory_follows_from_the_name(name: str, peak: float | None) -> None:
    found = peak_memory_gb_per_s(name)
    assert (None if found is None else found[0]) == peak
    assert found is None or found[1].startswith("NVIDIA ")
