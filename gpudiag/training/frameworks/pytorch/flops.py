"""Count the floating-point operations of one step, from tensor shapes and the formulas of `torch.utils.flop_counter`.

PyTorch's `FlopCounterMode` is unsuitable for these reasons:

- Every module of the process is hooked.
- Operators are replaced by Python decompositions if no gradient is needed.
- Recomputation by checkpointing is counted as work of the model.
- Attention on CPUs has no formula.
- The backward of a grouped convolution is counted once per group.

The mode in this module runs the program's operators unchanged, and sums their FLOPs.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from functools import cache
from types import TracebackType
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from gpudiag.model.run import StepFlops
from gpudiag.training.frameworks.pytorch.marks import anything_compiled

_aten: Any = torch.ops.aten
_C: Any = torch._C  # noqa: SLF001  # there is no public way to find the current backward pass
_IMPLICIT: Any = _C.DispatchKey.CompositeImplicitAutograd
#: Types of plain tensors. An operator of a subclass such as DTensor calls operators of the plain tensors within.
_PLAIN = {torch.Tensor, torch.nn.Parameter}
#: Namespaces of PyTorch's own operators. Any operator in another namespace may multiply matrices.
_PYTORCH = {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "fsdp", "inductor", "debugprims"}
#: Pattern of the names of PyTorch's operators that multiply matrices. Such an operator without formula is reported.
_MULTIPLIES = re.compile(r"mm(_|$)|rnn|attention|conv(?!ert)|mkldnn_linear")
_PRECISIONS = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

_COMPILED = "code compiled by torch.compile cannot be counted from outside"
_SCRIPTED = "code that TorchScript runs cannot be counted from outside"
_REPLAYED = "kernels that a CUDA graph replays cannot be counted from outside"
_IN_THREADS = "forward ran in other threads than the loop's (DataParallel), which cannot be observed"
_NOTHING = "no matrix product, convolution or attention was seen"


class FlopCounter:
    """Count the floating-point operations of the calling thread and of its backward passes within a `with` block.

    Nothing is counted if the program uses torch.compile, because the counter might cause a recompilation.

    Attributes:
        result: the number of operations, or the reason why it is unknown. None until a `with` block has ended normally.
    """

    result: StepFlops | None = None

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._counts: _Counts | None = None
        self._open = ExitStack()

    def __enter__(self) -> None:
        try:
            reason = _why_not(self._model)
            counts = _Counts()
        except Exception as error:  # noqa: BLE001  # private interfaces differ between versions; the training goes on
            reason = f"this PyTorch cannot be observed ({type(error).__name__}: {error})"
        if reason is not None:
            self.result = StepFlops(reason=reason)
            return
        self._counts = counts
        self._open.callback(_noting_replays(counts))
        self._open.enter_context(counts)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if self._counts is not None and kind is None:
            reason = _why_not(self._model)
            self.result = self._counts.result() if reason is None else StepFlops(reason=reason)
        self._counts = None


class _Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Run each operator unchanged, and add its FLOPs to the sums of its phase (forward, backward or recomputation)."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. True would import dynamo, which takes seconds."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that code which is compiled during the count is compiled as usual."""
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.replays = False  # True if a CUDA graph was replayed
        self._forward: Counter[str] = Counter()
        #: FLOPs within backward passes with gradients disabled, by number of the pass and precision.
        self._backward: dict[int, Counter[str]] = {}
        #: FLOPs within backward passes with gradients enabled, by (pass, whether in a custom function) and precision.
        self._recomputed: dict[tuple[int, bool], Counter[str]] = {}
        self._unknown: set[str] = set()  # names of operators that may multiply matrices, but have no formula
        self._tf32 = {"conv": _tf32("cudnn", "conv"), "matmul": _tf32("cuda", "matmul")}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator `func`, and count it; leave operators of tensor subclasses (`types`) to these classes."""
        plain = all(kind in _PLAIN for kind in types)
        # DTensor computes shapes with fake tensors. Such operators are run, but not counted.
        if not plain and FakeTensor not in types:
            return NotImplemented
        kwargs = kwargs or {}
        if plain and _is_implicit(func):
            with self:  # decompose the operator, as the dispatcher does if a gradient is needed
                return func._op_dk(_IMPLICIT, *args, **kwargs)  # noqa: SLF001
        out = func(*args, **kwargs)
        if plain:
            self._add(func, args, kwargs, out)
        return out

    def _add(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Add the FLOPs of one operator call, or note that the operator has no formula."""
        packet = getattr(func, "overloadpacket", func)  # flex_attention has no overloads
        formula = _FORMULAS.get(packet)
        if formula is None:
            if _may_multiply(func):
                self._unknown.add(str(packet))
            return
        try:
            work = int(formula(*args, **kwargs, out_val=out))
            self._phase()[self._precision(packet.__name__, args)] += work
        except Exception:  # noqa: BLE001  # a formula that fails must not end the training
            self._unknown.add(str(packet))

    def _phase(self) -> Counter[str]:
        """Return the counter (FLOPs by precision) for an operator that runs now."""
        task = int(_C._current_graph_task_id())  # noqa: SLF001
        if task < 0:  # no backward pass runs in this thread
            return self._forward
        if not torch.is_grad_enabled():
            return self._backward.setdefault(task, Counter())
        in_function = isinstance(_C._current_autograd_node(), _C._FunctionBase)  # noqa: SLF001
        return self._recomputed.setdefault((task, in_function), Counter())

    def _precision(self, name: str, args: tuple[Any, ...]) -> str:
        """Return an operator's precision (`fp32`, ...) by its name and its first tensor; `unknown` without a tensor."""
        first = next((value for value in args if isinstance(value, torch.Tensor)), None)
        if first is None:
            return "unknown"
        known = _PRECISIONS.get(first.dtype) or str(first.dtype).removeprefix("torch.")
        kind = "conv" if "conv" in name else "matmul"
        return "tf32" if known == "fp32" and first.device.type == "cuda" and self._tf32[kind] else known

    def result(self) -> StepFlops:
        """Return the number of operations of the whole step, or the reason why it is unknown."""
        total = self._forward.copy()
        for work in self._backward.values():
            total += work
        recomputed = 0
        for (task, in_function), work in self._recomputed.items():
            # A backward pass that is itself differentiated (create_graph) has gradients enabled in all its operations.
            # Any other backward pass has gradients enabled only while a checkpoint recomputes forward. Such a pass also
            # has operations with gradients disabled, or recomputes in a custom autograd function.
            if in_function or task in self._backward:
                recomputed += work.total()
            else:
                total += work
        reason = ""
        if self.replays:
            reason = _REPLAYED
        elif not self._forward and total:
            reason = _IN_THREADS
        elif not total:
            reason = f"{_NOTHING}; not known: {', '.join(sorted(self._unknown))}" if self._unknown else _NOTHING
        if reason:
            return StepFlops(reason=reason)
        return StepFlops(by_precision=dict(total), recomputed=recomputed, unknown=tuple(sorted(self._unknown)))


@cache
def _is_implicit(func: Any) -> bool:
    """Return whether an operator has no formula, but consists of other operators that can be counted instead."""
    packet = getattr(func, "overloadpacket", None)
    if packet is None or packet in _FORMULAS:
        return False
    return bool(_C._dispatch_has_kernel_for_dispatch_key(func.name(), _IMPLICIT))  # noqa: SLF001


@cache
def _may_multiply(func: Any) -> bool:
    packet = getattr(func, "overloadpacket", None)
    return packet is None or func.namespace not in _PYTORCH or bool(_MULTIPLIES.search(packet.__name__))


def _why_not(model: torch.nn.Module) -> str | None:
    """Return why the operations of a step cannot be counted; None if they can be counted."""
    # At least one step has run, so all code that the program compiles is compiled by now, including the optimizer.
    if anything_compiled():
        return _COMPILED
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return _SCRIPTED
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            return _COMPILED
    return None


def _noting_replays(counts: _Counts) -> Any:
    """Make each replay of a CUDA graph set `counts.replays`. Return a function that undoes this."""
    kind: Any = torch.cuda.CUDAGraph
    replay = kind.replay

    def noted(graph: Any) -> Any:
        counts.replays = True
        return replay(graph)

    kind.replay = noted
    return lambda: setattr(kind, "replay", replay)


def _tf32(backend: str, kind: str) -> bool:
    """Return whether operators of `torch.backends.<backend>.<kind>` may round fp32 inputs to tf32."""
    # Older versions of PyTorch have no `cudnn.conv`, but one setting for cuDNN.
    settings: Any = getattr(getattr(torch.backends, backend), kind, torch.backends.cudnn)
    precision = getattr(settings, "fp32_precision", None)  # replaces `allow_tf32` in newer versions of PyTorch
    return bool(settings.allow_tf32) if precision is None else precision == "tf32"


def _conv_backward(grad: Any, inputs: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """Return the FLOPs of a convolution's backward. Each requested gradient takes as many FLOPs as the forward."""
    transposed, wanted = rest[4], rest[7]  # `transposed` and `output_mask` of `aten::convolution_backward`
    each = flop_counter.conv_flop_count(list(inputs.shape), list(weight.shape), list(grad.shape), transposed)
    return int(each * (bool(wanted[0]) + bool(wanted[1])))


_ATTENTION = "_scaled_dot_product_flash_attention"
#: FLOP formulas by operator: PyTorch's own, but another for convolutions' backward, and added ones for CPU attention.
_FORMULAS: dict[Any, Any] = {
    **flop_counter.flop_registry,
    _aten.convolution_backward: _conv_backward,
    **{
        getattr(_aten, f"{_ATTENTION}_for_cpu{end}"): flop_counter.flop_registry[getattr(_aten, _ATTENTION + end)]
        for end in ("", "_backward")
    },
}
