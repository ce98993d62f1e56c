"""Compute the floating-point operations and bytes of operators from the shapes of their inputs.

PyTorch writes shapes if `record_shapes` is set. There are formulas for operators that launch kernels. FLOPs are counted
as in PyTorch's `FlopCounterMode`: a multiplication and an addition are two operations, and biases are not counted. But
a causal mask halves attention here, because kernels skip the masked half. Bytes of inputs and outputs count once each.
If a shape, a type or an option is unknown, the result is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice, zip_longest
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.compute_rates import PRECISIONS
from gpudiag.model.event import NO_NUMBER, OperatorWork
from gpudiag.trace.readers.kineto.event_args import element_bytes
from gpudiag.trace.readers.kineto.event_json import Event

#: Limits on untrusted values.
_LONGEST_ARGUMENTS = 1 << 16  # bytes of one event's arguments
_MOST_INPUTS = 64  # of an operator
_MOST_DIMENSIONS = 12  # of a tensor
_MOST_ELEMENTS = 2**40  # in one dimension
_MOST = 2**62  # FLOPs or bytes of one call
_MOST_CALLS = 50_000  # with different arguments

_PRECISION_OF = {"half": "fp16", "c10::half": "fp16", "bfloat16": "bf16", "c10::bfloat16": "bf16", "float": "fp32"}
_FLOATING = frozenset({*_PRECISION_OF, "double"})
_INTEGERS = frozenset({"long int", "long", "int", "short", "short int", "char", "signed char", "unsigned char", "bool"})
#: Bytes of an element by PyTorch's number of a type (`ScalarType`): half, float, double, bfloat16.
_TYPE_NUMBER_BYTES = {"5": 2, "6": 4, "7": 8, "15": 2}
_FLAGS = {"False": False, "True": True}
#: `custom_mask_type` of memory-efficient attention: no mask, causal from the top left, causal from the bottom right.
_MASKS = {"0": False, "1": True, "2": True}

_Shape = tuple[int, ...]


class _Arguments(msgspec.Struct, gc=False):
    shapes: list[Any] = msgspec.field(name="Input Dims")
    types: list[Any] = msgspec.field(name="Input type")
    strides: list[Any] = msgspec.field(name="Input Strides", default_factory=list)
    values: list[Any] = msgspec.field(name="Concrete Inputs", default_factory=list)


_arguments = msgspec.json.Decoder(_Arguments)
#: Begin of the fields that describe inputs.
_INPUTS = re.compile(rb'"(?:Input |Concrete)')


class _UnknownWorkError(ValueError):
    """The recorded arguments of a call do not determine its work."""


class _Call:
    """The recorded inputs of one call. Methods raise ValueError, IndexError or KeyError if something is unknown."""

    def __init__(self, arguments: _Arguments) -> None:
        self._shapes, self._strides, self.values = arguments.shapes, arguments.strides, arguments.values
        self.types = [str(name).lower() for name in arguments.types]
        if len(self._shapes) > _MOST_INPUTS or len(self.types) != len(self._shapes):
            raise _UnknownWorkError

    def shape(self, index: int) -> _Shape:
        """Return the shape of an input; () for a number or a missing input."""
        shape = self._shapes[index]
        if isinstance(shape, tuple):  # already checked
            return shape
        if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
            raise _UnknownWorkError
        for extent in shape:
            if not isinstance(extent, int) or not 0 <= extent <= _MOST_ELEMENTS:
                raise _UnknownWorkError
        checked = self._shapes[index] = tuple(shape)
        return checked

    def element(self, index: int) -> int:
        """Return the number of bytes of one element of an input."""
        return _known(element_bytes(self.types[index]))

    def read(self, index: int) -> int:
        """Return the number of bytes of an input: 0 for missing inputs and numbers; broadcast elements count once."""
        if self.types[index] in {"", "scalar"}:
            return 0
        shape, strides = self.shape(index), self._strides[index] if index < len(self._strides) else ()
        if isinstance(strides, list) and len(strides) == len(shape):
            shape = tuple(extent for extent, stride in zip(shape, strides, strict=True) if stride != 0)
        return prod(shape) * self.element(index)

    def integers(self, index: int, count: int) -> _Shape:
        """Return an input that is a list of integers, such as `[2, 2]`; repeat a single integer `count` times."""
        words = str(self.values[index]).strip("[]").split(",")
        if len(words) > _MOST_DIMENSIONS or any(len(word) > 12 for word in words):
            raise _UnknownWorkError
        numbers = tuple(map(int, words))
        return numbers * count if len(numbers) == 1 else numbers

    def output_type(self, indices: Sequence[int]) -> int:
        """Return the index of an input that has the type of an elementwise operator's result.

        Numbers, integers and tensors without dimensions do not change a floating-point type; other types may.
        """
        indices = [index for index in indices if self.types[index] not in {"", "scalar"}]
        wide = [index for index in indices if self.shape(index)]
        floating = [index for index in wide if self.types[index] in _FLOATING]
        others = {self.types[index] for index in indices if self.types[index] not in _FLOATING}
        if len({self.types[index] for index in floating}) != 1 or not others <= _INTEGERS:
            raise _UnknownWorkError
        return floating[0]


class _Work(NamedTuple):
    """FLOPs, bytes and index of the precision; `NO_NUMBER` if unknown."""

    flops: int = NO_NUMBER
    moved_bytes: int = NO_NUMBER
    precision: int = NO_NUMBER


def _known(value: int | None) -> int:
    if value is None:
        raise _UnknownWorkError
    return value


def _require(*conditions: bool) -> None:
    if not all(conditions):
        raise _UnknownWorkError


def _product(call: _Call, first: int) -> tuple[int, _Shape, int]:
    """Return (FLOPs, shape of the output, `first`) of a product of the inputs `first` and `first + 1`."""
    *batch, rows, inner = call.shape(first)
    *other_batch, depth, columns = call.shape(first + 1)
    _require(batch == other_batch, inner == depth)
    return 2 * prod(batch) * rows * inner * columns, (*batch, rows, columns), first


class _Layout(NamedTuple):
    """Positions of the inputs of an attention operator.

    Attributes:
        query: position of the queries; keys and values follow at the next two positions.
        causal: position of the flag or kind of the causal mask.
        heads_first: whether tensors are [batch, heads, sequence, depth] instead of [batch, sequence, heads, depth].
        absent: positions of inputs that must be missing, because they divide a batch into sequences of various lengths.
        windows: positions of the mask's window sizes, which must be missing or -1.
        masks: value at `causal` → whether the mask is causal.
    """

    query: int
    causal: int
    heads_first: bool = False
    absent: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    masks: dict[str, bool] = _FLAGS


def _attention(call: _Call, layout: _Layout, *, backward: bool = False) -> tuple[int, _Shape, int]:
    """Return (FLOPs, shape of the output, index of the queries) of attention. Backward has five products, not two."""
    _require(*(call.types[index] == "" for index in layout.absent))
    _require(*(str(call.values[index]) in {"", "-1"} for index in layout.windows if index < len(call.values)))
    shapes = [call.shape(layout.query + index) for index in range(3)]
    _require(all(len(shape) == 4 for shape in shapes))
    if not layout.heads_first:
        shapes = [(batch, heads, length, depth) for batch, length, heads, depth in shapes]
    (batch, heads, rows, depth), (key_batch, _, columns, key_depth), (_, _, value_rows, value_depth) = shapes
    _require(batch == key_batch, columns == value_rows, depth == key_depth)
    scores = batch * heads * rows * columns
    if layout.masks[str(call.values[layout.causal])]:
        _require(rows == columns)  # a causal mask covers half of the scores only if they form a square
        scores //= 2
    flops = scores * 2 * (3 * depth + 2 * value_depth if backward else depth + value_depth)
    return flops, (batch, heads, rows, value_depth), layout.query


def _convolution(call: _Call, padding: int) -> tuple[int, _Shape, int]:
    """Return (FLOPs, shape of the output, 0) of a convolution of input 0 with the weights, input 1.

    `padding` is the position of the paddings; strides and dilations follow at the next two positions.
    """
    (batch, _, *extents), (channels, depth, *window) = call.shape(0), call.shape(1)
    count = len(extents)
    pads, strides, dilations = (call.integers(padding + index, count) for index in range(3))
    _require(count == len(window) == len(pads) == len(strides) == len(dilations), min(strides, default=0) > 0)
    output = [
        (extent + 2 * pad - dilation * (size - 1) - 1) // stride + 1
        for extent, pad, dilation, size, stride in zip(extents, pads, dilations, window, strides, strict=True)
    ]
    _require(min(output) > 0)
    shape = (batch, channels, *output)
    return 2 * prod(shape) * depth * prod(window), shape, 0


def _convolution_backward(call: _Call) -> tuple[int, _Shape, int]:
    """Return (FLOPs, (), 0) of a convolution's gradients for its input, weights or both (argument `output_mask`).

    Input 0 is the gradient of the convolution's output, and input 2 has the weights.
    """
    gradient, (_, depth, *window) = call.shape(0), call.shape(2)
    _require(call.values[7] == "False", len(gradient) == len(window) + 2)  # not transposed
    wanted = [_FLAGS[word.strip()] for word in str(call.values[10]).strip("[]").split(",")]
    _require(len(wanted) == 3)
    return sum(wanted[:2]) * 2 * prod(gradient) * depth * prod(window), (), 0


#: Call → (FLOPs, shape of the output, index of an input that has the output's type).
_Formula = Callable[[_Call], tuple[int, _Shape, int]]
#: Operator with matrix products → (formula, positions of the inputs whose bytes count; () if bytes are unknown).
_MATRIX: dict[str, tuple[_Formula, tuple[int, ...]]] = {
    "aten::mm": (partial(_product, first=0), (0, 1)),
    "aten::bmm": (partial(_product, first=0), (0, 1)),
    "aten::addmm": (partial(_product, first=1), (0, 1, 2)),
    "aten::baddbmm": (partial(_product, first=1), (0, 1, 2)),
    "aten::_scaled_mm": (partial(_product, first=0), ()),
    "aten::cudnn_convolution": (partial(_convolution, padding=2), (0, 1)),
    "aten::miopen_convolution": (partial(_convolution, padding=3), (0, 1, 2)),
    "aten::convolution_backward": (_convolution_backward, ()),
    **{
        name: (partial(_attention, layout=layout), (0, 1, 2))
        for name, layout in {
            "aten::_flash_attention_forward": _Layout(0, 8, absent=(3, 4), windows=(11, 12)),
            "aten::_efficient_attention_forward": _Layout(0, 9, absent=(4, 5), masks=_MASKS),
            "aten::_scaled_dot_product_cudnn_attention": _Layout(0, 6, heads_first=True),
            "aten::_cudnn_attention_forward": _Layout(0, 10, heads_first=True, absent=(4, 5)),
        }.items()
    },
    **{
        name: (partial(_attention, layout=layout, backward=True), ())
        for name, layout in {
            "aten::_flash_attention_backward": _Layout(1, 11, absent=(6, 7)),
            "aten::_efficient_attention_backward": _Layout(1, 14, absent=(6, 7), masks=_MASKS),
            "aten::_scaled_dot_product_cudnn_attention_backward": _Layout(1, 14, heads_first=True, absent=(9, 10)),
        }.items()
    },
}


def _like(call: _Call, reads: tuple[int, ...], output: int) -> int:
    """Return the bytes of an operator whose output has the shape and type of the input `output`."""
    return sum(map(call.read, reads)) + prod(call.shape(output)) * call.element(output)


def _elementwise(call: _Call, reads: tuple[int, ...]) -> int:
    """Return the bytes of an operator whose output has the broadcast shape of the inputs `reads`."""
    output = []
    # Broadcasting aligns the last dimensions.
    for extents in zip_longest(*(call.shape(index)[::-1] for index in reads), fillvalue=1):
        output.append(max(extents))
        _require(set(extents) <= {1, max(extents)})
    return sum(map(call.read, reads)) + prod(output) * call.element(call.output_type(reads))


def _softmax(call: _Call) -> int:
    """Return the bytes of a softmax, which may convert half precision to fp32 (`half_to_float`)."""
    size = 4 if _FLAGS[str(call.values[2])] else call.element(0)
    return call.read(0) + prod(call.shape(0)) * size


def _softmax_backward(call: _Call) -> int:
    return call.read(0) + call.read(1) + prod(call.shape(1)) * _TYPE_NUMBER_BYTES[str(call.values[3])]


_UNARY = (
    "abs", "clamp", "clamp_min", "clamp_max", "cos", "erf", "exp", "gelu", "hardtanh", "leaky_relu", "log", "neg",
    "pow", "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "sqrt", "square", "tanh",
)  # fmt: skip
_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
_TERNARY = ("addcmul", "addcdiv", "lerp", "where")
_BACKWARD = ("threshold", "gelu", "silu", "sigmoid", "tanh", "hardtanh", "leaky_relu")


def _elementwise_table() -> dict[str, Callable[[_Call], int]]:
    """Return elementwise operator → formula of its bytes. A final underscore marks operators that change input 0."""
    table: dict[str, Callable[[_Call], int]] = {}
    for count, names in enumerate((_UNARY, _BINARY, _TERNARY), start=1):
        reads = tuple(range(count))
        table |= {f"aten::{name}": partial(_elementwise, reads=reads) for name in names}
        table |= {f"aten::{name}_": partial(_like, reads=reads, output=0) for name in names}
    return table | {f"aten::{name}_backward": partial(_elementwise, reads=(0, 1)) for name in _BACKWARD}


#: Memory-bound operator → formula of its bytes.
_MEMORY: dict[str, Callable[[_Call], int]] = {
    **_elementwise_table(),
    "aten::copy_": partial(_like, reads=(1,), output=0),
    "aten::fill_": partial(_like, reads=(), output=0),
    "aten::native_layer_norm": partial(_like, reads=(0, 2, 3), output=0),
    "aten::native_layer_norm_backward": partial(_like, reads=(0, 1, 3, 4, 5), output=1),
    "aten::native_group_norm": partial(_like, reads=(0, 1, 2), output=0),
    "aten::_fused_rms_norm": partial(_like, reads=(0, 2), output=0),
    "aten::native_batch_norm": partial(_like, reads=(0, 1, 2), output=0),
    "aten::native_batch_norm_backward": partial(_like, reads=(0, 1, 2), output=1),
    "aten::cudnn_batch_norm": partial(_like, reads=(0, 1, 2), output=0),
    "aten::cudnn_batch_norm_backward": partial(_like, reads=(0, 1, 2), output=0),
    "aten::miopen_batch_norm": partial(_like, reads=(0, 1, 2), output=0),
    "aten::miopen_batch_norm_backward": partial(_like, reads=(0, 1, 2), output=0),
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
}
#: Names of the operators with formulas.
OPERATORS = frozenset({*_MATRIX, *_MEMORY})


def _work(name: str, arguments: bytes) -> _Work:
    """Return the work of a call of operator `name` from its `args` (JSON); unknown figures are `NO_NUMBER`."""
    try:
        call = _Call(_arguments.decode(arguments))
        if name in _MEMORY:
            return _Work(moved_bytes=_bounded(_MEMORY[name](call)))
        formula, reads = _MATRIX[name]
        flops, output, first = formula(call)
        precision = _precision(call, first)
    except (ValueError, IndexError, KeyError, msgspec.DecodeError, RecursionError):
        return _Work()
    moved = NO_NUMBER
    # The output is assumed to have the type of the inputs, so the inputs must have one known type.
    if reads and precision != NO_NUMBER:
        try:
            moved = sum(map(call.read, reads)) + prod(output) * call.element(first)
        except (ValueError, IndexError):
            moved = NO_NUMBER
    return _Work(_bounded(flops), _bounded(moved), precision)


def _precision(call: _Call, first: int) -> int:
    """Return the index of the precision of two multiplied inputs; `NO_NUMBER` unless they have one known type."""
    names = {_PRECISION_OF.get(name) for name in call.types[first : first + 2]}
    name = names.pop() if len(names) == 1 else None
    return NO_NUMBER if name is None else PRECISIONS.index(name)


def _bounded(value: int) -> int:
    return value if 0 <= value < _MOST else NO_NUMBER


class WorkReader:
    """Collect the work of operators in file order."""

    def __init__(self) -> None:
        self._index_by_call: dict[tuple[str, bytes], int] = {}
        self._has_formula = bytearray()
        #: Distinct works; the first is the unknown work.
        self._works = [_Work()]
        self._rows: list[int] = []
        self._work_of_row: list[int] = []

    def add(self, first: int, events: list[Event], name: NDArray[np.int32], names: Iterable[str]) -> None:
        """Add the operators of a batch, which begins at event `first` of the file. `name` has indices into `names`."""
        # Append a flag for each name that appeared first in this batch.
        self._has_formula += bytes(name in OPERATORS for name in islice(names, len(self._has_formula), None))
        for row in np.flatnonzero(np.frombuffer(bytes(self._has_formula), np.bool_)[name]).tolist():
            if work := self._index_of_work(events[row]):
                self._rows.append(first + row)
                self._work_of_row.append(work)

    def _index_of_work(self, event: Event) -> int:
        """Return the index of an operator's work in `_works`; 0 if it is unknown."""
        text = bytes(event.args)
        # Calls with equal inputs have equal text from the first field about inputs to the end of the last list.
        begin = _INPUTS.search(text)
        if begin is None or len(text) > _LONGEST_ARGUMENTS:
            return 0
        key = (event.name, text[begin.start() : text.rfind(b"]")])
        index = self._index_by_call.get(key)
        if index is None:
            if len(self._index_by_call) >= _MOST_CALLS:  # limits memory
                return 0
            work = _work(event.name, text)
            index = self._index_by_call[key] = len(self._works) if work != self._works[0] else 0
            if index:
                self._works.append(work)
        return index

    def finish(self, position: NDArray[np.int64]) -> OperatorWork | None:
        """Return the work by row; None if no work is known. `position` maps indices in the file to rows, or to -1."""
        row = position[np.array(self._rows, np.int64)]
        order = np.argsort(row, kind="stable")
        order = order[row[order] >= 0]
        if not len(order):
            return None
        works = np.array(self._works, np.int64)
        flops, moved_bytes, precision = works[np.array(self._work_of_row)[order]].T
        return OperatorWork(
            row=row[order], flops=flops.copy(), moved_bytes=moved_bytes.copy(), precision=precision.astype(np.int8)
        )
