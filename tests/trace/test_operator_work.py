"""Test the work of operators that follows from recorded shapes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.compute_rates import PRECISIONS
from gpudiag.trace import read_traces
from gpudiag.trace.readers.kineto import operator_work
from gpudiag.trace.readers.kineto.event_json import Event
from gpudiag.trace.readers.kineto.operator_work import OPERATORS, WorkReader
from tests.trace.documents import TRACES, document, event, kernel, launch, read_one

if TYPE_CHECKING:
    from gpudiag.model.event import Trace

HALF, SCALAR, LIST = "c10::Half", "Scalar", "ScalarList"


def operator(name: str, shapes: Any, types: Any, values: Any = None, **more: Any) -> dict[str, Any]:
    """Return an operator with recorded inputs."""
    arguments = {"Input Dims": shapes, "Input type": types, "Concrete Inputs": values, **more}
    return event("cpu_op", name, 0, 10, args={key: value for key, value in arguments.items() if value is not None})


def work_of(trace: Trace) -> list[tuple[str, int, int, str]]:
    """Return (name, FLOPs, bytes, precision) of each operator with known work."""
    work = trace.operator_work
    if work is None:
        return []
    columns = zip(
        work.row.tolist(), work.flops.tolist(), work.moved_bytes.tolist(), work.precision.tolist(), strict=True
    )
    return [
        (trace.events.name_of(row), flops, moved, PRECISIONS[code] if code >= 0 else "")
        for row, flops, moved, code in columns
    ]


def only(directory: Path, event_of_operator: dict[str, Any]) -> tuple[int, int, str] | None:
    """Return (FLOPs, bytes, precision) of one operator, or None if its work is unknown."""
    found = work_of(read_one(directory, document(event_of_operator, launch(1, 1), kernel("k", 5, 1, 1))))
    return found[0][1:] if found else None


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("aten::mm", ([[2, 3], [3, 5]], ["float", "float"], None), (60, 4 * (6 + 15 + 10), "fp32")),
        ("aten::mm", ([[2, 3], [3, 5]], [HALF, "float"], None), (60, -1, "")),
        ("aten::addmm", ([[5], [2, 3], [3, 5], []], [HALF] * 3 + [SCALAR], None), (60, 2 * (5 + 6 + 15 + 10), "fp16")),
        ("aten::bmm", ([[7, 2, 3], [7, 3, 5]], [HALF, HALF], None), (420, 14 * (6 + 15 + 10), "fp16")),
        (
            "aten::baddbmm",
            ([[1, 2, 5], [7, 2, 3], [7, 3, 5]], [HALF] * 3, None),
            (420, 20 + 14 * (6 + 15 + 10), "fp16"),
        ),
        ("aten::_scaled_mm", ([[2, 3], [3, 5]], ["c10::Float8_e4m3fn"] * 2, None), (60, -1, "")),
        ("aten::mm", ([[2, 3], [4, 5]], ["float", "float"], None), None),
        ("aten::mm", ([[2, -3], [-3, 5]], ["float", "float"], None), None),
        ("aten::mm", ([[2, 2**60], [2**60, 5]], ["float", "float"], None), None),
        ("aten::mm", ([[2**31, 2**31], [2**31, 5]], ["float", "float"], None), (-1, -1, "fp32")),
        ("aten::mm", ("[[2, 3], [3, 5]]", ["float", "float"], None), None),
        ("aten::mm", ([[2, 3], [3, 5]], ["float"], None), None),
        ("aten::mm", ([2, 3], ["float", "float"], None), None),
        ("aten::mm", ([[2, 3], [3, 5]] + [[]] * 100, ["float"] * 102, None), None),
        ("aten::mystery", ([[2, 3], [3, 5]], ["float", "float"], None), None),
        ("aten::add", ([[4, 1], [3]], [HALF, HALF], None), (-1, 2 * (4 + 3 + 12), "")),
        ("aten::mul", ([[4, 3], []], ["float", "double"], None), (-1, 4 * 24 + 8, "")),
        ("aten::mul", ([[4, 3], [4, 3]], ["float", "double"], None), None),
        ("aten::add", ([[4, 3], [2, 3]], ["float", "float"], None), None),
        ("aten::add_", ([[4, 3], [3], []], ["float", "float", SCALAR], None), (-1, 4 * 27, "")),
        ("aten::mul", ([[4, 3], [], [4, 3]], ["float", "double", "float"], None), (-1, 4 * 24 + 8, "")),
        ("aten::relu", ([[4, 3]], ["long int"], None), None),
        ("aten::copy_", ([[4, 3], [4, 3], []], [HALF, "float", SCALAR], None), (-1, 12 * 6, "")),
        ("aten::fill_", ([[4, 3], []], ["float", SCALAR], None), (-1, 48, "")),
        ("aten::_softmax", ([[4, 3], [], []], [HALF, SCALAR, SCALAR], ["", "1", "True"]), (-1, 12 * 6, "")),
        ("aten::_softmax", ([[4, 3], [], []], [HALF, SCALAR, SCALAR], None), None),
        (
            "aten::native_layer_norm",
            ([[4, 3], [], [3], [], []], ["float", LIST, "float", "", SCALAR], None),
            (-1, 4 * (12 + 3 + 12), ""),
        ),
    ],
)
def test_work_follows_from_shapes_or_is_unknown(
    tmp_path: Path, name: str, inputs: tuple[Any, Any, Any], expected: tuple[int, int, str] | None
) -> None:
    assert only(tmp_path, operator(name, *inputs)) == expected


def test_repeated_elements_of_an_expanded_input_count_once(tmp_path: Path) -> None:
    strides = {"Input Strides": [[3, 1], [0, 1]]}
    found = only(tmp_path, operator("aten::mul", [[4, 3], [4, 3]], ["float", "float"], None, **strides))
    assert found == (-1, 4 * (12 + 3 + 12), "")


@pytest.mark.parametrize(
    ("padding", "stride", "dilation", "output"),
    [("[0, 0]", "[16, 16]", "[1, 1]", 14 * 14), ("[1]", "[2]", "[1]", 106 * 106), ("", "[16, 16]", "[1, 1]", None)],
)
def test_convolution_needs_padding_stride_and_dilation(
    tmp_path: Path, padding: str, stride: str, dilation: str, output: int | None
) -> None:
    shapes = [[4, 3, 224, 224], [768, 3, 16, 16], [], [], [], []]
    types = [HALF, HALF, LIST, LIST, LIST, SCALAR]
    found = only(tmp_path, operator("aten::cudnn_convolution", shapes, types, ["", "", padding, stride, dilation, "1"]))
    assert (found[0] if found else None) == (None if output is None else 2 * 4 * 768 * output * 3 * 16 * 16)


@pytest.mark.parametrize(("mask", "derivatives"), [("[True, True, False]", 2), ("[False, True, True]", 1)])
def test_convolution_backward_counts_the_wanted_derivatives(tmp_path: Path, mask: str, derivatives: int) -> None:
    shapes = [[10, 512, 7, 7], [10, 256, 14, 14], [512, 256, 3, 3], *([[]] * 8)]
    types = [HALF, HALF, HALF, *([LIST] * 4), SCALAR, LIST, SCALAR, LIST]
    values = ["", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    found = only(tmp_path, operator("aten::convolution_backward", shapes, types, values))
    assert found == (derivatives * 2 * 10 * 512 * 49 * 256 * 9, -1, "fp16")


@pytest.mark.parametrize(
    ("causal", "keys", "window", "share"),
    [("False", 8, "", 1), ("True", 8, "", 0.5), ("True", 4, "", None), ("", 8, "", None), ("False", 8, "2", None)],
)
def test_causal_attention_counts_half_and_unknown_masks_nothing(
    tmp_path: Path, causal: str, keys: int, window: str, share: float | None
) -> None:
    shapes = [[2, 8, 3, 64], [2, keys, 3, 64], [2, keys, 3, 64], *([[]] * 10)]
    types = [HALF] * 3 + ["", ""] + [SCALAR] * 5 + [""] * 3
    values = ["", "", "", "", "", "8", "8", "0.", causal, "False", "0.125", window, window]
    found = only(tmp_path, operator("aten::_flash_attention_forward", shapes, types, values))
    assert (found[0] if found else None) == (None if share is None else share * 4 * 2 * 3 * 8 * keys * 64)


_EXTENTS: st.SearchStrategy[Any] = st.integers(-2, 9) | st.sampled_from([2**40, 2**63, 2.5, None, True, "3", []])
_SHAPES = st.lists(st.lists(_EXTENTS, max_size=5) | st.none() | st.text(max_size=3), max_size=16)
_TYPES = st.lists(st.sampled_from(["", SCALAR, LIST, HALF, "float", "bool", "TensorList"]) | st.none(), max_size=16)
_VALUES: st.SearchStrategy[Any] = st.lists(
    st.sampled_from(
        ["", "1", "-1", "True", "False", "[1, 1]", "[0]", "[True, False, True]", "[" * 9, "9" * 5000, None, []]
    ),
    max_size=16,
)


@given(st.sampled_from(sorted(OPERATORS)), _SHAPES, _TYPES, _VALUES, _SHAPES)
def test_hostile_inputs_have_unknown_or_bounded_work(
    name: str, shapes: Any, types: Any, values: Any, strides: Any
) -> None:
    types = [*types, *([HALF] * len(shapes))][: len(shapes)]
    inputs = operator(name, shapes, types, values, **{"Input Strides": strides})
    reader = WorkReader()
    args = msgspec.Raw(msgspec.json.encode(inputs["args"]))
    reader.add(0, [Event(name=name, args=args)], np.array([0], np.int32), [name])
    found = reader.finish(np.array([0]))
    assert found is None or max(*found.flops.tolist(), *found.moved_bytes.tolist()) < 2**62


def test_trace_without_shapes_has_no_work(tmp_path: Path) -> None:
    assert read_one(tmp_path, document(event("cpu_op", "aten::mm", 0, 10))).operator_work is None


@pytest.mark.parametrize(
    ("recording", "expected"),
    [
        (
            "h100_qwen_forward",
            {
                ("aten::mm", 51_581_550_592, 74_457_088): 72,
                ("aten::mm", 18_756_927_488, 38_731_776): 24,
                ("aten::addmm", 18_756_927_488, 38_733_824): 72,
                ("aten::bmm", 35_776, 73_916): 1,
                ("aten::_flash_attention_forward", 10_239_377_408, 73_269_248): 24,
            },
        ),
        (
            "h100_falcon",
            {
                ("aten::addmm", 929_562_624, 3_601_920): 48,
                ("aten::addmm", 3_718_250_496, 10_776_576): 12,
                ("aten::addmm", 3_718_250_496, 10_771_968): 12,
                ("aten::addmm", 4_718_592, 1_193_472): 1,
                ("aten::cudnn_convolution", 924_844_032, 3_588_096): 1,
                ("aten::_flash_attention_forward", 476_884_992, 4_841_472): 12,
            },
        ),
    ],
)
def test_work_equals_another_tools_tables(recording: str, expected: dict[tuple[str, int, int], int]) -> None:
    """TraceLens publishes its tables beside the traces; FLOPs of addmm and bytes of convolution include the bias."""
    (trace,) = read_traces([TRACES / "public2" / f"{recording}.json.gz"])
    assert Counter((name, flops, moved) for name, flops, moved, _ in work_of(trace) if flops >= 0) == expected


@pytest.mark.parametrize("name", [*operator_work._MATRIX])
def test_positions_of_arguments_are_those_of_pytorch(name: str) -> None:
    """A recorded call has the arguments of the operator's schema, in order."""
    formula: Any = operator_work._MATRIX[name][0]
    schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
    arguments = [argument.name for argument in schema.arguments]
    options = getattr(formula, "keywords", {})
    if "layout" in options:
        layout = options["layout"]
        assert arguments[layout.query : layout.query + 3] == ["query", "key", "value"]
        assert arguments[layout.causal] in {"is_causal", "custom_mask_type"}
    if "padding" in options:
        assert arguments[options["padding"] :][:3] == ["padding", "stride", "dilation"]
    if "first" in options:
        assert arguments[options["first"] + 1] == "mat2" or arguments[options["first"] + 1] == "batch2"
