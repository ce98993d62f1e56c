"""Test the report's rows of kernel classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpudiag import analyze
from gpudiag.model.compute_rates import ComputeClass
from gpudiag.report.compute_rows import compute_columns, compute_rows
from gpudiag.report.text.run import to_markdown
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis


@pytest.fixture(scope="module")
def with_shapes() -> Analysis:
    return analyze(TRACES / "public2" / "h100_falcon.json.gz")


def test_reports_show_what_classes_reached(with_shapes: Analysis) -> None:
    assert compute_columns(with_shapes)[-1] == "reached"
    reached = {row[0]: row[-1] for row in compute_rows(with_shapes)}
    assert reached["matmul"] == "182 TFLOP/s, 18 % of peak"
    assert reached["normalization"] == "545 GB/s, 16 % of peak"
    assert reached["other"] == ""
    assert "| 182 TFLOP/s, 18 % of peak |" in to_markdown(with_shapes)


def test_column_is_left_out_if_nothing_is_known(with_shapes: Analysis) -> None:
    unknown = replace(with_shapes, compute_classes=(ComputeClass(kernel_class="matmul", ms_per_step=1.0, kernels=2.0),))
    assert (compute_columns(unknown)[-1], compute_rows(unknown)) == ("bound", [("matmul", "1.00", "100 %", "2", "")])


@pytest.mark.parametrize(
    ("known_percent", "peak_percent", "text"),
    [(49.0, 20.0, ""), (50.0, 20.0, "1.25 TB/s, 20 % of peak"), (100.0, None, "1.25 TB/s"), (None, None, "")],
)
def test_rate_needs_half_of_the_shapes(
    with_shapes: Analysis, known_percent: float | None, peak_percent: float | None, text: str
) -> None:
    row = ComputeClass(
        kernel_class="softmax",
        ms_per_step=1.0,
        kernels=2.0,
        gb_per_s=1250.0,
        known_percent=known_percent,
        peak_percent=peak_percent,
    )
    (cells,) = compute_rows(replace(with_shapes, compute_classes=(row,)))
    assert cells[5:] == ((text,) if text else ())
