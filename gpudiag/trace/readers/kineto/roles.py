"""What the events of PyTorch's profiler do in a training step, by the names that PyTorch, CUDA and loaders give."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import NO_NUMBER, Direction, EventKind, EventTable, HostMemory, Role, StepMarks
from gpudiag.trace.readers.cuda_calls import role_of_call
from gpudiag.trace.readers.kineto.collective_names import HOST_COLLECTIVES, kernel_operation

#: Marks by preference. Each captures the step number where the mark carries one.
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
#: Moves gradients in and out of buckets (DDP's reducer), shards in and out of parameters (FSDP).
_BUCKET_COPY = re.compile(r"torch(?:::|\.)distributed(?:::|\.).*reducer::|fsdp::")
#: Hands a collective over: eager calls, functional ones (DTensor's, compiled).
_ENQUEUE = re.compile(r"c10d::|_?c10d_functional::")
#: The host at an exchange: what gpudiag's strategies and a user's own code mark, FSDP's hooks, and what DataParallel
#: and its relatives do as functions of the autograd engine, or around the threads in which its replicas train.
_COMMUNICATION_RANGE = re.compile(
    r"gpudiag\.exchange|FSDP::|RegisterPostBackwardFunction|FullyShardedDataParallel\._|DataParallel\.forward"
)
_COMMUNICATION_FUNCTION = re.compile(
    r"(?:autograd::engine::evaluate_function: )?(?:Broadcast|Gather|Scatter|ReduceAddCoalesced)(?:Backward)?$"
)

#: Python's garbage collector: as gpudiag marks it, and PyTorch where it was asked to (`record_python_gc_info`).
_GARBAGE_COLLECTION = frozenset({"gpudiag.gc", "Python GC"})

#: A module of the model in recorded stacks.
_MODULE_CALL = "nn.Module: "
#: `train.py(42): log_metrics`: the file, relative to where Python finds modules, the line in which the function begins.
_FRAME = re.compile(r"(?P<file>[^<>()]+\.py)\(\d+\): .+")
#: Frames of these are not the user's: the standard library, and what a training loop is built on.
_LIBRARIES = sys.stdlib_module_names | {"torch", "torchvision", "torchaudio", "numpy", "gpudiag", "triton", "nvtx"}
_INSTALLED = ("site-packages", "dist-packages", "/lib/python")

#: What PyTorch runs on GPUs only: operators of vendors' libraries.
_ON_GPUS = ("aten::cudnn_", "aten::_cudnn", "aten::miopen_")
#: What only asks whether one could: recurrent layers do, on CPUs too.
_ASKS = "aten::cudnn_is_acceptable"

#: Directions as CUPTI's tools write them (`Memcpy HtoD (Pinned -> Device)`) and as ROCm's do (`CopyHostToDevice`).
_DIRECTIONS = (
    (Direction.HOST_TO_DEVICE, re.compile(r"Memcpy HtoD|.*CopyHostToDevice")),
    (Direction.DEVICE_TO_HOST, re.compile(r"Memcpy DtoH|CopyDeviceToHost")),
    (Direction.PEER, re.compile(r"Memcpy PtoP|.*CopyPeer")),
    (Direction.DEVICE_TO_DEVICE, re.compile(r"Memcpy DtoD|.*CopyDeviceToDevice")),
    (Direction.HOST_TO_HOST, re.compile(r"Memcpy HtoH|.*CopyHostToHost")),
)


class Roles(msgspec.Struct, frozen=True):
    """The columns `role`, `direction` and `host_memory` of an event table."""

    role: NDArray[np.uint8]
    direction: NDArray[np.uint8]
    host_memory: NDArray[np.uint8]


def roles_of(kind: NDArray[np.uint8], name: NDArray[np.int32], names: Sequence[str]) -> Roles:
    """What events do, worked out once for each pair of kind and name.

    Args:
        kind: uint8[n], an `EventKind` each.
        name: int32[n], index into `names`.
        names: the distinct names.
    """
    pair = kind.astype(np.intp) * len(names) + name
    met = np.bincount(pair)
    role, direction, host_memory = (np.zeros(len(met), np.uint8) for _ in range(3))
    for one in np.flatnonzero(met).tolist():
        of_kind, index = divmod(one, len(names))
        if of_kind in _ROLE_OF:
            role[one] = _ROLE_OF[of_kind](names[index])
        if of_kind == EventKind.COPY:
            direction[one], host_memory[one] = _direction(names[index]), _host_memory(names[index])
    return Roles(role[pair], direction[pair], host_memory[pair])


def step_marks_of(events: EventTable) -> tuple[StepMarks, ...]:
    """The step marks of a table whose roles are known, those to be preferred first."""
    rows = np.flatnonzero((events.role == Role.STEP_MARK) & (events.kind == EventKind.ANNOTATION))
    names = [events.name_of(row) for row in rows.tolist()]
    marks = []
    for source, pattern in _STEP_MARKS:
        carried = {index: match[1] for index, name in enumerate(names) if (match := pattern.match(name))}
        if carried:
            numbers = [int(text) if text is not None and len(text) < 18 else NO_NUMBER for text in carried.values()]
            marks.append(StepMarks(source=source, row=rows[list(carried)], number=np.array(numbers, np.int64)))
    return tuple(marks)


def runs_on_gpus(names: Sequence[str]) -> bool:
    """Whether events of these names, of operators among others, are of a process that uses GPUs."""
    return any(name.startswith(_ON_GPUS) and name != _ASKS for name in names)


def is_users(name: str) -> bool:
    """Whether an event of this name is a function of the user's own program.

    >>> is_users("train.py(42): log_metrics")
    True
    >>> is_users("torch/nn/modules/module.py(1782): _call_impl"), is_users("typing.py(2268): cast")
    (False, False)
    >>> is_users("<built-in method item of Tensor object at 0x7f68>"), is_users("nn.Module: Linear_0")
    (False, False)
    """
    match = _FRAME.fullmatch(name)
    if match is None:
        return False
    path = match["file"]
    module = path.split("/", 1)[0].removesuffix(".py")
    return module not in _LIBRARIES and not any(place in path for place in _INSTALLED)


@cache
def _operator(name: str) -> Role:
    if _ENQUEUE.match(name):
        return Role.ENQUEUE
    if _COMMUNICATION_FUNCTION.match(name):
        return Role.COMMUNICATION
    if _INPUT.match(name):
        return Role.INPUT
    return Role.BUCKET_COPY if _BUCKET_COPY.match(name) else Role.OPERATOR


@cache
def _annotation(name: str) -> Role:
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
def _python(name: str) -> Role:
    if _INPUT.match(name):
        return Role.INPUT
    if name in _GARBAGE_COLLECTION:
        return Role.GARBAGE_COLLECTION
    if name.startswith(_MODULE_CALL):
        return Role.MODULE_CALL
    return Role.USER_FUNCTION if is_users(name) else Role.OTHER


def _kernel(name: str) -> Role:
    return Role.COMPUTE if kernel_operation(name) is None else Role.COMMUNICATION


def _copy(name: str) -> Role:
    return Role.COMMUNICATION if _direction(name) == Direction.PEER else Role.COPY


@cache
def _direction(name: str) -> Direction:
    return next((direction for direction, pattern in _DIRECTIONS if pattern.match(name)), Direction.NONE)


def _device_annotation(name: str) -> Role:
    return Role.COMMUNICATION if name.startswith("gpudiag.exchange") else Role.OTHER


def _host_memory(name: str) -> HostMemory:
    lowered = name.lower()
    if "pageable" in lowered:
        return HostMemory.PAGEABLE
    return HostMemory.PINNED if "pinned" in lowered else HostMemory.UNKNOWN


_ROLE_OF: dict[int, Callable[[str], Role]] = {
    EventKind.OPERATOR: _operator,
    EventKind.ANNOTATION: _annotation,
    EventKind.PYTHON: _python,
    EventKind.RUNTIME: role_of_call,
    EventKind.KERNEL: _kernel,
    EventKind.COPY: _copy,
    EventKind.MEMSET: _copy,
    EventKind.DEVICE_ANNOTATION: _device_annotation,
}
