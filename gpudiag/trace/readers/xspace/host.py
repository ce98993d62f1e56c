"""Find kinds and roles of the events of host threads, and the framework and workload of a process.

`jax_host` has the code for JAX alone. A function call of TensorFlow passes through several layers on the training
thread. Each layer is an event that encloses the next layer. The innermost layer waits until executor threads have run
the function:

    python3      train │ EagerExecute │ EagerKernelExecute │ KernelAndDeviceFunc::Run                              │
    tf_Compute                                                  ExecutorState::Process (launch launch launch …) │

The training thread is idle from the first launch to the end, although four of its events span this time. Therefore only
innermost events of the training thread are work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.analysis import WorkloadKind
from gpudiag.model.event import EventKind, Role
from gpudiag.trace.readers.names import is_training_kernel, role_of_call
from gpudiag.trace.readers.xspace import hlo
from gpudiag.trace.readers.xspace.communication_names import CommunicationNames
from gpudiag.trace.readers.xspace.jax_host import jax_kinds, set_jax_roles
from gpudiag.trace.readers.xspace.planes import CORRELATION, HLO_OP, STEP, Plane

#: Call that returns the next element of a tf.data iterator, in which the training thread waits if input is late.
INPUT = re.compile(r"Iterator(?:GetNext|GetNextAsOptional|GetNextSync)(?:Op)?::DoCompute")
#: Layers of a function call. At low trace levels, layers are innermost events, because no events inside are recorded.
_LAYERS = re.compile(r"KernelAndDeviceFunc::Run|EagerKernelExecute|EagerExecute|EagerLocalExecute|TFE_Py_Execute")
#: The layer in which executors run a function.
_FUNCTION = "KernelAndDeviceFunc::Run"
_GPUDIAG_INPUT = re.compile(r"gpudiag\.input$")
_PYTHON = re.compile(r"\$")  # the Python tracer: "$file.py:12 function"

#: Names (`scope/of/op:Type`) of ops in which executor threads wait for other processes.
_COLLECTIVE = re.compile(r"[^:]*:Collective(Reduce|Gather|ReduceScatter|AllToAll)(?:V\d)?$")
_OPERATIONS = {
    "Reduce": "all_reduce",
    "Gather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllToAll": "all_to_all",
}

NO_STEP = -1


def host_operation(name: str) -> str | None:
    """Return the collective operation of an op with this name; None if the op is no collective between processes.

    >>> host_operation("gpudiag.exchange/CollectiveReduceV2:CollectiveReduceV2")
    'all_reduce'
    """
    match = _COLLECTIVE.match(name)
    return _OPERATIONS[match[1]] if match else None


def is_function(name: str) -> bool:
    """Return whether an event is a run of a function. The run ends when all work of its executors has ended."""
    return name == _FUNCTION


def host_kinds(
    plane: Plane, framework: str, *, has_devices: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64], int | None]:
    """Return (each event's `EventKind`, its step number or `NO_STEP`, index of the training thread's line or None).

    Unless `has_devices`, the training thread takes the place of the device, and its function calls are the work.
    """
    step = plane.whole(STEP, NO_STEP)
    if framework == "jax":
        kind, training = jax_kinds(plane, step)
    else:
        kind, training = _tensorflow_kinds(plane, step, has_devices=has_devices)
    if CORRELATION in plane.stats:
        kind[plane.stats[CORRELATION][0]] = EventKind.RUNTIME
    overhead = plane.overhead & (kind != EventKind.RUNTIME)
    kind[overhead] = EventKind.OVERHEAD
    return kind, step, training


def _tensorflow_kinds(
    plane: Plane, step: NDArray[np.int64], *, has_devices: bool
) -> tuple[NDArray[np.uint8], int | None]:
    """Return (each event's `EventKind`, index of the line with the step marks or None); `step` as in `host_kinds`.

    Events of the training thread that enclose others are annotations, because they span waits too. Unless
    `has_devices`, function calls are the work, so that only events around a wait for input are annotations.
    """
    kind = np.full(len(plane.name), EventKind.OPERATOR, np.uint8)
    kind[plane.named(_PYTHON.match)] = EventKind.PYTHON
    marks = np.flatnonzero(step >= 0)
    training = None
    if len(marks):
        training = int(np.bincount(plane.line[marks]).argmax())
        rows = np.flatnonzero(plane.line == training)
        inner = None if has_devices else plane.named(INPUT.match)[rows]
        kind[rows[_enclose_others(plane.start_ns[rows], plane.end_ns[rows], inner)]] = EventKind.ANNOTATION
    if has_devices:
        kind[plane.named(_LAYERS.match)] = EventKind.ANNOTATION
    kind[marks] = EventKind.ANNOTATION
    return kind, training


def host_roles(
    plane: Plane,
    kind: NDArray[np.uint8],
    step: NDArray[np.int64],
    communication: CommunicationNames,
    framework: str,
    *,
    has_devices: bool,
) -> NDArray[np.uint8]:
    """Return uint8[n]: the `Role` of each event of a host.

    `name_calls` may later change the roles of calls to those of the launched work.

    Args:
        plane: the host's plane.
        kind, step: from `host_kinds`.
        communication: names of ops by which TensorFlow communicates without NCCL.
        framework: `tensorflow`, `jax` or `unknown`.
        has_devices: whether GPUs were recorded. If so, kernels are the collectives, and ops only launch them.
    """
    operator = kind == EventKind.OPERATOR
    role = np.where(operator, np.uint8(Role.OPERATOR), np.uint8(Role.OTHER))
    if not has_devices:
        role[plane.named(host_operation) & operator] = Role.COMMUNICATION
        role[plane.with_text(HLO_OP, hlo.communicates) & operator] = Role.COMMUNICATION
    communicates = communication.sends(plane) | communication.adds(plane) | communication.receives(plane)
    role[communicates & operator] = Role.COMMUNICATION
    may_wait = np.isin(kind, (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.PYTHON))
    role[may_wait & (plane.named(INPUT.match) | plane.named(_GPUDIAG_INPUT.match))] = Role.INPUT
    role[(step != NO_STEP) & (kind == EventKind.ANNOTATION)] = Role.STEP_MARK
    calls = kind == EventKind.RUNTIME
    for index in distinct(plane.name[calls]).tolist():
        role[calls & (plane.name == index)] = role_of_call(plane.names[index])
    if framework == "jax":
        set_jax_roles(plane, kind, step, role)
    return role


def _enclose_others(
    start: NDArray[np.int64], end: NDArray[np.int64], inner: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Return bool[n]: whether each event of one thread encloses another event (of the `inner` events, if given)."""
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    counts = np.ones(len(order), np.int64) if inner is None else inner[order].astype(np.int64)
    before = np.concatenate([[0], np.cumsum(counts)])
    # Events of a thread are nested, so an event that starts between start and end of another event is inside it.
    inside = before[np.searchsorted(start, end, side="left")] - before[np.arange(len(order)) + 1]
    encloses = np.zeros(len(order), np.bool_)
    encloses[order] = inside > 0
    return encloses


#: TensorFlow, JAX and PyTorch/XLA use the same profiler. Each has characteristic calls on host threads. The compiler
#: keeps the names of operations on devices: `jit(step)/transpose(jvp(main))/dot_general` (JAX; `transpose` marks
#: backward passes), `gradient_tape/model/dense/MatMul` (TensorFlow).
_JAX = re.compile(r"PjitFunction\(|\$(?:pxla|xla_bridge|pjit|jaxlib|jax)\b|jit\([^)]*\)/|jit_\w+$|pmap\([^)]*\)/")
_TENSORFLOW = re.compile(
    r"(?:EagerExecute|EagerKernelExecute|EagerLocalExecute|TFE_Py_Execute|KernelAndDeviceFunc::Run"
    r"|ExecutorState::\w+|FunctionRun|SessionRun|RunGraph|Iterator::\w+|tf\.data|TraceContext)\b|.*:[A-Z]\w+(?:V\d)?$"
)
_JAX_VERSION = "jax_version"
_TENSORFLOW_THREAD = re.compile(r"tf_(?:Compute|data)|TF_")

_JAX_TRAINS = re.compile(
    r"transpose\(jvp|jit\(\w*(?:train_step|update_step)\w*\)|PjitFunction\(\w*(?:train_step|update_step)"
)
_TENSORFLOW_TRAINS = re.compile(
    r"gradient_tape/|(?:^|/)gradients?(?:_\d+)?/|Backprop(?:Filter|Input)|\w+Grad(?:V\d)?$|Resource(?:Sparse)?Apply"
    r"|(?:^|[:/])Apply(?:Adam|GradientDescent|Momentum|RMSProp)|(?:^|/)(?:sgd|adam|adamw|rmsprop|momentum)(?:_\d+)?/",
    re.IGNORECASE,
)
#: Operations of a model, as the compiler or the executor names them.
_MODEL = re.compile(r"dot_general|conv|MatMul|Einsum|BiasAdd|Relu|Softmax|attention|gemm|Cijk_|norm", re.IGNORECASE)


def framework_of(planes: Sequence[Plane]) -> str:
    """Return `jax`, `tensorflow`, or `unknown` if no event is characteristic of either.

    JAX 0.5 and later writes its version into the profile. JAX has precedence, because JAX programs may load data with
    TensorFlow.
    """
    names = _event_names(planes)
    if any(_JAX_VERSION in plane.about for plane in planes) or any(_JAX.match(name) for name in names):
        return "jax"
    threads = (name for plane in planes if plane.device is None for _, name in plane.lines)
    if any(_TENSORFLOW.match(name) for name in names) or any(_TENSORFLOW_THREAD.match(name) for name in threads):
        return "tensorflow"
    return "unknown"


def workload_of(planes: Sequence[Plane], framework: str) -> WorkloadKind:
    """Return the workload of the process."""
    names = _event_names(planes)
    trains = _JAX_TRAINS if framework == "jax" else _TENSORFLOW_TRAINS
    kernels = {name for plane in planes if plane.device is not None for name in plane.names}
    if any(trains.search(name) for name in names) or any(is_training_kernel(name) for name in kernels):
        return "training"
    if framework == "jax" and any(_marks_training(plane) for plane in planes):
        return "training"
    # If no names of JAX's operations were recorded, names of kernels cannot exclude a backward pass.
    if framework == "jax" and not any("jit(" in name for name in names):
        return "unknown"
    return "inference" if any(_MODEL.search(name) for name in names) else "unknown"


def _marks_training(plane: Plane) -> bool:
    """Return whether a plane's step marks are named `train`, as in JAX's documentation."""
    marked = distinct(plane.name[plane.whole(STEP, NO_STEP) != NO_STEP]).tolist()
    return any(plane.names[index].startswith("train") for index in marked)


def _event_names(planes: Sequence[Plane]) -> set[str]:
    """Return the names of all events, and all text values of their stats, such as names of operations."""
    return {name for plane in planes for name in (*plane.names, *plane.texts.values())}
