"""Floating-point operations of one step, by PyTorch's formulas (`torch.utils.flop_counter`), from the shapes it has.

`FlopCounterMode` itself hooks every module of the process, runs Python's decompositions in place of the dispatcher's
own where nothing is to be differentiated, takes what checkpointing computes again for the model's, and does not know
attention on CPUs; the backward of a grouped convolution it counts as often as there are groups. The mode here calls
what would have been called, with the same tensors, and adds up.
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
from gpudiag.training.frameworks.pytorch.compiled import anything_compiled

_aten: Any = torch.ops.aten
_C: Any = torch._C  # noqa: SLF001  # what backward is under way is told nowhere else
_IMPLICIT: Any = _C.DispatchKey.CompositeImplicitAutograd
#: Tensors that hide no others. Subclasses (DTensor) first do what they do, with the tensors within them.
_PLAIN = {torch.Tensor, torch.nn.Parameter}
#: Of other libraries' operators nobody knows what they multiply; these are PyTorch's own.
_OWN = {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "fsdp", "inductor", "debugprims"}
#: What multiplies matrices, by its name: of these, those without a formula are named.
_MULTIPLIES = re.compile(r"mm(_|$)|rnn|attention|conv(?!ert)|mkldnn_linear")
_PRECISIONS = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

_COMPILED = "what torch.compile has compiled cannot be counted from outside"
_SCRIPTED = "what TorchScript runs cannot be counted from outside"
_REPLAYED = "what a CUDA graph replays cannot be counted from outside"
_IN_THREADS = "forward ran in other threads than the loop's (DataParallel), where it is not seen"
_NOTHING = "no matrix product, convolution or attention was seen"


class FlopCounter:
    """Counts what runs in this thread, and in its backward, between entering and leaving.

    Nothing is counted where the program compiles or captures: it might be compiled anew.

    Attributes:
        found: what was counted, or why nothing was; None before, and when the step was not finished.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.found: StepFlops | None = None
        self._model = model
        self._counts: _Counts | None = None
        self._open = ExitStack()

    def __enter__(self) -> None:
        try:
            reason = _why_not(self._model)
            counts = _Counts()
        except Exception as error:  # noqa: BLE001  # of a PyTorch whose private parts are others: the training goes on
            reason = f"this PyTorch cannot be seen into ({type(error).__name__}: {error})"
        if reason is not None:
            self.found = StepFlops(reason=reason)
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
            self.found = self._counts.result() if reason is None else StepFlops(reason=reason)
        self._counts = None


class _Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiles here, and to skip it would import it, which takes seconds."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled for the first time in this very step is compiled as ever."""
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.replays = False
        self._forward: Counter[str] = Counter()
        #: By backward pass: its own work, and what runs in it as forward does, with gradients on.
        self._backward: dict[int, Counter[str]] = {}
        self._again: dict[tuple[int, bool], Counter[str]] = {}
        self._unknown: set[str] = set()
        self._tf32 = {"conv": _tf32("cudnn", "conv"), "matmul": _tf32("cuda", "matmul")}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = all(kind in _PLAIN for kind in types)
        if not plain and FakeTensor not in types:  # these, DTensor asks which shapes a result would have
            return NotImplemented
        kwargs = kwargs or {}
        if plain and _is_implicit(func):
            with self:  # as the dispatcher does by itself where something is to be differentiated
                return func._op_dk(_IMPLICIT, *args, **kwargs)  # noqa: SLF001
        out = func(*args, **kwargs)
        if plain:
            self._add(func, args, kwargs, out)
        return out

    def _add(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        packet = getattr(func, "overloadpacket", func)  # flex_attention and the like have none
        formula = _FORMULAS.get(packet)
        if formula is None:
            if _may_multiply(func):
                self._unknown.add(str(packet))
            return
        try:
            work = int(formula(*args, **kwargs, out_val=out))
            self._phase()[self._precision(packet.__name__, args)] += work
        except Exception:  # noqa: BLE001  # what PyTorch's formulas do not expect is no matter of the training
            self._unknown.add(str(packet))

    def _phase(self) -> Counter[str]:
        task = int(_C._current_graph_task_id())  # noqa: SLF001
        if task < 0:
            return self._forward
        if not torch.is_grad_enabled():
            return self._backward.setdefault(task, Counter())
        own = isinstance(_C._current_autograd_node(), _C._FunctionBase)  # noqa: SLF001
        return self._again.setdefault((task, own), Counter())

    def _precision(self, name: str, args: tuple[Any, ...]) -> str:
        first = next((one for one in args if isinstance(one, torch.Tensor)), None)
        if first is None:
            return "unknown"
        known = _PRECISIONS.get(first.dtype) or str(first.dtype).removeprefix("torch.")
        kind = "conv" if "conv" in name else "matmul"
        return "tf32" if known == "fp32" and first.device.type == "cuda" and self._tf32[kind] else known

    def result(self) -> StepFlops:
        """Of the whole step."""
        total = self._forward.copy()
        for work in self._backward.values():
            total += work
        again = 0
        for (task, own), work in self._again.items():
            # Gradients are on all through a backward that is differentiated itself (create_graph), and in others only
            # where a checkpoint computes forward again: beside what they do with gradients off, or in a function of
            # its own.
            if own or task in self._backward:
                again += work.total()
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
        return StepFlops(by_precision=dict(total), recomputed=again, unknown=tuple(sorted(self._unknown)))


@cache
def _is_implicit(func: Any) -> bool:
    """Made of other operators, in which it is to be counted, unless PyTorch has a formula for the whole."""
    packet = getattr(func, "overloadpacket", None)
    if packet is None or packet in _FORMULAS:
        return False
    return bool(_C._dispatch_has_kernel_for_dispatch_key(func.name(), _IMPLICIT))  # noqa: SLF001


@cache
def _may_multiply(func: Any) -> bool:
    packet = getattr(func, "overloadpacket", None)
    return packet is None or func.namespace not in _OWN or bool(_MULTIPLIES.search(packet.__name__))


def _why_not(model: torch.nn.Module) -> str | None:
    # All that was compiled so far, the loss or the optimizer too: the program's first step is over by now.
    if anything_compiled():
        return _COMPILED
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return _SCRIPTED
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            return _COMPILED
    return None


def _noting_replays(counts: _Counts) -> Any:
    """CUDA graphs that are replayed from here on are noted; returns what puts their class back as it was."""
    kind: Any = torch.cuda.CUDAGraph
    replay = kind.replay

    def noted(graph: Any) -> Any:
        counts.replays = True
        return replay(graph)

    kind.replay = noted
    return lambda: setattr(kind, "replay", replay)


def _tf32(backend: str, kind: str) -> bool:
    """May matrix units round fp32 inputs to tf32, in this kind of operator?"""
    settings: Any = getattr(getattr(torch.backends, backend), kind, torch.backends.cudnn)
    precision = getattr(settings, "fp32_precision", None)  # the old names warn where there are new ones
    return bool(settings.allow_tf32) if precision is None else precision == "tf32"


def _conv_backward(grad: Any, inputs: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """As much as forward for each gradient of the two, whatever the groups."""
    transposed, wanted = rest[4], rest[7]
    each = flop_counter.conv_flop_count(list(inputs.shape), list(weight.shape), list(grad.shape), transposed)
    return int(each * (bool(wanted[0]) + bool(wanted[1])))


_ATTENTION = "_scaled_dot_product_flash_attention"
#: PyTorch's own, and what they leave out.
_FORMULAS: dict[Any, Any] = {
    **flop_counter.flop_registry,
    _aten.convolution_backward: _conv_backward,
    **{
        getattr(_aten, f"{_ATTENTION}_for_cpu{end}"): flop_counter.flop_registry[getattr(_aten, _ATTENTION + end)]
        for end in ("", "_backward")
    },
}
