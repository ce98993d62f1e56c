"""Find the roles of events and the workload from names that PyTorch's profiler records."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, among, distinct, subtract, union
from gpudiag.model.analysis import WorkloadKind
from gpudiag.model.event import NO_NUMBER, Direction, EventKind, EventTable, HostMemory, Role, StepMarks, any_of
from gpudiag.trace.readers.kineto.event_args import HOST_COLLECTIVES
from gpudiag.trace.readers.names import (
    events_named,
    is_optimizer_kernel,
    is_training_kernel,
    kernel_operation,
    role_of_call,
)

#: Step marks in order of preference. Each pattern captures the step number if the mark has one.
_STEP_MARKS = (
    ("gpudiag.step", re.compile(r"gpudiag\.step(?:#(\d+))?$")),
    ("ProfilerStep", re.compile(r"ProfilerStep[#*](\d+)?")),
    ("step_num", re.compile(r"[^#]*#step_num=(\d+)#$")),  # TensorFlow's Trace(name, step_num=…, _r=1)
)
_INPUT = re.compile(
    r"enumerate\(DataLoader\)"  # torch.utils.data, all versions
    r"|.*DataLoaderIter\.__next__"
    r"|gpudiag\.input$"
    r"|.*\btrain_dataloader_next\b"  # Lightning's profiler
    r"|.*\bdataloader_next\b|.*\bfetch_batch\b|.*\bget_batch\b",
    re.IGNORECASE,
)
#: Copies of gradients into and out of buckets (DDP's reducer), and of shards into and out of parameters (FSDP).
_BUCKET_COPY = re.compile(r"torch(?:::|\.)distributed(?:::|\.).*reducer::|fsdp::")
#: Operators that enqueue a collective: eager calls, and functional calls (DTensor's, compiled).
_ENQUEUE = re.compile(r"c10d::|_?c10d_functional::")
#: Communication on the host: ranges of gpudiag's strategies and of users, FSDP's hooks, and DataParallel (its range
#: around the threads of its replicas, and its functions in the autograd engine).
_COMMUNICATION_RANGE = re.compile(
    r"gpudiag\.exchange|FSDP::|RegisterPostBackwardFunction|FullyShardedDataParallel\._|DataParallel\.forward"
)
_COMMUNICATION_FUNCTION = re.compile(
    r"(?:autograd::engine::evaluate_function: )?(?:Broadcast|Gather|Scatter|ReduceAddCoalesced)(?:Backward)?$"
)

#: Python's garbage collector, marked by gpudiag, or by PyTorch if `record_python_gc_info` is set.
_GARBAGE_COLLECTION = frozenset({"gpudiag.gc", "Python GC"})

#: A module of the model in recorded stacks.
_MODULE_CALL = "nn.Module: "
#: A function in stacks, such as `train.py(42): log_metrics`: file relative to Python's module path, first line, name.
_FRAME = re.compile(r"(?P<file>[^<>()]+\.py)\(\d+\): .+")
#: Modules that do not belong to the user: the standard library, and libraries that training loops use.
_LIBRARIES = sys.stdlib_module_names | {"torch", "torchvision", "torchaudio", "numpy", "gpudiag", "triton", "nvtx"}
_INSTALLED = ("site-packages", "dist-packages", "/lib/python")

#: Operators of vendors' libraries, which run only on GPUs.
_ON_GPUS = ("aten::cudnn_", "aten::_cudnn", "aten::miopen_")
#: A cuDNN availability check, which recurrent layers also make on CPUs.
_AVAILABILITY_CHECK = "aten::cudnn_is_acceptable"

#: Directions in the names of copies from CUPTI (`Memcpy HtoD (Pinned -> Device)`) and ROCm (`CopyHostToDevice`).
_DIRECTIONS = (
    (Direction.HOST_TO_DEVICE, re.compile(r"Memcpy HtoD|.*CopyHostToDevice")),
    (Direction.DEVICE_TO_HOST, re.compile(r"Memcpy DtoH|CopyDeviceToHost")),
    (Direction.PEER, re.compile(r"Memcpy PtoP|.*CopyPeer")),
    (Direction.DEVICE_TO_DEVICE, re.compile(r"Memcpy DtoD|.*CopyDeviceToDevice")),
    (Direction.HOST_TO_HOST, re.compile(r"Memcpy HtoH|.*CopyHostToHost")),
)


class Roles(msgspec.Struct, frozen=True):
    """Columns `role`, `direction` and `host_memory` of an event table."""

    role: NDArray[np.uint8]
    direction: NDArray[np.uint8]
    host_memory: NDArray[np.uint8]


def roles_of(kind: NDArray[np.uint8], name: NDArray[np.int32], names: Sequence[str]) -> Roles:
    """Return role, direction and host memory of events from each event's kind and name (index into `names`)."""
    # Each distinct pair of kind and name is interpreted once.
    pair = kind.astype(np.intp) * len(names) + name
    counts = np.bincount(pair)
    role, direction, host_memory = (np.zeros(len(counts), np.uint8) for _ in range(3))
    for code in np.flatnonzero(counts).tolist():
        event_kind, index = divmod(code, len(names))
        if event_kind in _ROLE_OF_KIND:
            role[code] = _ROLE_OF_KIND[event_kind](names[index])
        if event_kind == EventKind.COPY:
            direction[code], host_memory[code] = _direction(names[index]), _host_memory(names[index])
    return Roles(role[pair], direction[pair], host_memory[pair])


def step_marks_of(events: EventTable) -> tuple[StepMarks, ...]:
    """Return the step marks of a table with known roles, the preferred kind first."""
    rows = np.flatnonzero((events.role == Role.STEP_MARK) & (events.kind == EventKind.ANNOTATION))
    names = [events.name_of(row) for row in rows.tolist()]
    marks = []
    for source, pattern in _STEP_MARKS:
        number_texts = {index: match[1] for index, name in enumerate(names) if (match := pattern.match(name))}
        if number_texts:
            numbers = [  # fewer than 18 digits fit int64
                int(text) if text is not None and len(text) < 18 else NO_NUMBER for text in number_texts.values()
            ]
            marks.append(StepMarks(source=source, row=rows[list(number_texts)], number=np.array(numbers, np.int64)))
    return tuple(marks)


def runs_on_gpus(names: Sequence[str]) -> bool:
    """Return whether one of these event names is an operator that runs only on GPUs."""
    return any(name.startswith(_ON_GPUS) and name != _AVAILABILITY_CHECK for name in names)


def is_user_function(name: str) -> bool:
    """Return whether an event of this name is a function of the user's program.

    >>> is_user_function("train.py(42): log_metrics")
    True
    >>> is_user_function("torch/nn/modules/module.py(1782): _call_impl"), is_user_function("typing.py(2268): cast")
    (False, False)
    >>> is_user_function("<built-in method item of Tensor object at 0x7f68>"), is_user_function("nn.Module: Linear_0")
    (False, False)
    """
    match = _FRAME.fullmatch(name)
    if match is None:
        return False
    path = match["file"]
    module = path.split("/", 1)[0].removesuffix(".py")
    return module not in _LIBRARIES and not any(directory in path for directory in _INSTALLED)


@cache
def _operator_role(name: str) -> Role:
    if _ENQUEUE.match(name):
        return Role.ENQUEUE
    if _COMMUNICATION_FUNCTION.match(name):
        return Role.COMMUNICATION
    if _INPUT.match(name):
        return Role.INPUT
    return Role.BUCKET_COPY if _BUCKET_COPY.match(name) else Role.OPERATOR


@cache
def _annotation_role(name: str) -> Role:
    if any(pattern.match(name) for _, pattern in _STEP_MARKS):
        return Role.STEP_MARK
    if name.startswith("Optimizer.step#"):
        return Role.OPTIMIZER
    if name.startswith(HOST_COLLECTIVES) or _COMMUNICATION_RANGE.match(name):
        return Role.COMMUNICATION
    if _INPUT.match(name):
        return Role.INPUT
    if name in _GARBAGE_COLLECTION:
        return Role.GARBAGE_COLLECTION
    return Role.BUCKET_COPY if _BUCKET_COPY.match(name) else Role.OTHER


@cache
def _python_role(name: str) -> Role:
    if _INPUT.match(name):
        return Role.INPUT
    if name in _GARBAGE_COLLECTION:
        return Role.GARBAGE_COLLECTION
    if name.startswith(_MODULE_CALL):
        return Role.MODULE_CALL
    return Role.USER_FUNCTION if is_user_function(name) else Role.OTHER


def _kernel_role(name: str) -> Role:
    return Role.COMPUTE if kernel_operation(name) is None else Role.COMMUNICATION


def _copy_role(name: str) -> Role:
    return Role.COMMUNICATION if _direction(name) == Direction.PEER else Role.COPY


@cache
def _direction(name: str) -> Direction:
    return next((direction for direction, pattern in _DIRECTIONS if pattern.match(name)), Direction.NONE)


def _device_annotation_role(name: str) -> Role:
    return Role.COMMUNICATION if name.startswith("gpudiag.exchange") else Role.OTHER


def _host_memory(name: str) -> HostMemory:
    lowered = name.lower()
    if "pageable" in lowered:
        return HostMemory.PAGEABLE
    return HostMemory.PINNED if "pinned" in lowered else HostMemory.UNKNOWN


#: Kind of event → function that returns the role of such an event from its name.
_ROLE_OF_KIND: dict[int, Callable[[str], Role]] = {
    EventKind.OPERATOR: _operator_role,
    EventKind.ANNOTATION: _annotation_role,
    EventKind.PYTHON: _python_role,
    EventKind.RUNTIME: role_of_call,
    EventKind.KERNEL: _kernel_role,
    EventKind.COPY: _copy_role,
    EventKind.MEMSET: _copy_role,
    EventKind.DEVICE_ANNOTATION: _device_annotation_role,
}

_EVALUATED = re.compile(r"autograd::engine::evaluate_function: (?:torch::autograd::)?AccumulateGrad$")
_ACCUMULATED = re.compile(r"(?:torch::autograd::)?AccumulateGrad$")
_DDP = re.compile(r"DistributedDataParallel\.forward$|torch(?:::|\.)distributed(?:::|\.).*reducer::")


def roles_with_hooks(table: EventTable) -> NDArray[np.uint8]:
    """Return the role column, uint8[n], with `COMMUNICATION` for operators of a DDP communication hook.

    A user's hook has no fixed name. The autograd engine runs the hook after accumulating a parameter's gradient and
    after DDP's bucket copy:

        evaluate_function: torch::autograd::AccumulateGrad ├───────────────────────────────────────────────┤
          torch::autograd::AccumulateGrad                    ├── aten::add_ ──┤
          torch.distributed.ddp.reducer::mul_out                               ├──┤
          aten::to, aten::div, c10d::allreduce_, …  the hook's                     ├────────────────────┤
    """
    role = table.role
    if not any(_DDP.match(name) for name in table.names):
        return role
    operators = np.flatnonzero((table.kind == int(EventKind.OPERATOR)) & (role == int(Role.OPERATOR)))
    evaluated = operators[events_named(table, _EVALUATED.match)[operators]]
    accumulated = operators[events_named(table, _ACCUMULATED.match)[operators]]
    # Bucket copies, enqueued collectives, and an optimizer that runs in the backward pass keep their roles.
    known = np.flatnonzero(any_of(role, Role.BUCKET_COPY, Role.ENQUEUE, Role.OPTIMIZER))
    role = role.copy()
    for thread in distinct(table.thread[evaluated]).tolist():
        enclosing = _spans(table, evaluated[table.thread[evaluated] == thread])
        not_hooks = np.concatenate([rows[table.thread[rows] == thread] for rows in (accumulated, known)])
        hooks = subtract(enclosing, _spans(table, not_hooks))
        if len(hooks) == 0:
            continue
        rows = operators[table.thread[operators] == thread]
        # Hook operators lie completely within one of the spans `hooks`.
        slot = np.searchsorted(hooks.start, table.start_ns[rows], side="right") - 1
        rows = rows[(slot >= 0) & (table.end_ns[rows] <= hooks.end[np.maximum(slot, 0)])]
        role[rows[~among(rows, evaluated) & ~among(rows, accumulated)]] = Role.COMMUNICATION
    return role


def _spans(table: EventTable, rows: NDArray[np.intp]) -> Intervals:
    return union(Intervals(table.start_ns[rows], table.end_ns[rows]))


#: Operators and ranges of a backward pass or an update: autograd's nodes (`MulBackward0`, `CompiledFunctionBackward`),
#: `aten::convolution_backward`, hooks of DDP and FSDP, ranges that users name `backward` or `optimizer`. Megatron's
#: `forward_backward_func` is left out, because evaluation uses it too.
_TRAINING = re.compile(
    r"autograd::engine::evaluate_function|(?:torch::autograd::)?AccumulateGrad\b|Optimizer\.step#"
    r"|(?:.*[a-z0-9_])?Backward\d*$|aten::\w*_backward\b|torch(?:::|\.)distributed(?:::|\.).*reducer::"
    r"|FSDP::(?:pre|post)_backward|aten::_fused_(?:adam|adamw|sgd|adagrad)_"
    r"|(?:## )?(?:gpudiag\.)?(?:backward|optimizer)(?:\.step)?(?: ##)?$"
)
#: Python functions that run a backward pass or an update.
_TRAINING_FUNCTION = re.compile(
    r"torch/_tensor\.py\(\d+\): backward$|torch/autograd/__init__\.py\(\d+\): backward$"
    r"|(?:<built-in method run_backward\b)|torch/optim/\w+\.py\(\d+\): step$"
)
#: Operators, ranges and kernels of a model's layers.
_MODEL = re.compile(
    r"aten::(?:_?\w*mm\b|addmm|bmm|baddbmm|matmul|linear|conv\w*|_convolution|cudnn_convolution|miopen_\w+|\w*layer_norm"
    r"|\w*batch_norm|\w*rms_norm|\w*softmax|\w*attention\w*|embedding\w*|\w*scaled_mm|relu\w*|gelu|silu|sigmoid|tanh)"
    r"|nn\.Module: |gpudiag\.module:|fbgemm::|vllm::|sgl_kernel::|aiter::|flash_attn::|(?:## )?forward(?: ##)?$"
    r"|## Call CompiledFxGraph|execute_|model_inference|.*(?:gemm|attn|attention|conv|Cijk_|norm|softmax)",
    re.IGNORECASE,
)
_HOST_KINDS = (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.MODULE)


def workload_of(table: EventTable) -> WorkloadKind:
    """Return the workload of a process.

    Kernels alone can show training, but only recorded operators can show that the workload is inference. Beside
    operators, backward kernels prove nothing, because the forward pass of a transposed convolution also runs them.
    """
    names: dict[int, list[str]] = {}
    for kind in EventKind:
        used = np.flatnonzero(np.bincount(table.name[table.kind == int(kind)], minlength=len(table.names)))
        names[int(kind)] = [table.names[index] for index in used.tolist()]
    on_host = [name for kind in _HOST_KINDS for name in names[kind]]
    kernels = names[EventKind.KERNEL]
    proves_training = is_optimizer_kernel if names[EventKind.OPERATOR] else is_training_kernel
    if (
        any(_TRAINING.match(name) for name in on_host)
        or any(_TRAINING_FUNCTION.search(name) for name in names[EventKind.PYTHON])
        or any(proves_training(name) for name in kernels)
    ):
        return "training"
    if not names[EventKind.OPERATOR]:
        return "unknown"
    return "inference" if any(_MODEL.match(name) for name in (*on_host, *kernels)) else "unknown"
