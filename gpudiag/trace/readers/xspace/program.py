"""Tell what wrote an XSpace, and whether it trained, by the names of its events.

TensorFlow, JAX and PyTorch/XLA record with one profiler. On its host threads each leaves calls of its own; of what the
devices ran the compiler keeps the operation that it was made of: `jit(step)/transpose(jvp(main))/dot_general` (JAX),
`gradient_tape/model/dense/MatMul` (TensorFlow). JAX calls what a backward pass is made of `transpose`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpudiag.model.analysis import WorkloadKind
from gpudiag.trace.readers.names import is_training_kernel
from gpudiag.trace.readers.xspace.planes import Plane

_JAX = re.compile(r"PjitFunction\(|\$(?:pxla|xla_bridge|pjit|jaxlib|jax)\b|jit\([^)]*\)/|jit_\w+$|pmap\([^)]*\)/")
_TENSORFLOW = re.compile(
    r"(?:EagerExecute|EagerKernelExecute|EagerLocalExecute|TFE_Py_Execute|KernelAndDeviceFunc::Run"
    r"|ExecutorState::\w+|FunctionRun|SessionRun|RunGraph|Iterator::\w+|tf\.data|TraceContext)\b|.*:[A-Z]\w+(?:V\d)?$"
)
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
    """Return `jax`, `tensorflow`, or `unknown` where neither left a trace of its own."""
    names = _names(planes)
    if any(_JAX.match(name) for name in names):
        return "jax"
    threads = (name for plane in planes if plane.device is None for _, name in plane.lines)
    if any(_TENSORFLOW.match(name) for name in names) or any(_TENSORFLOW_THREAD.match(name) for name in threads):
        return "tensorflow"
    return "unknown"


def workload_of(planes: Sequence[Plane], framework: str) -> WorkloadKind:
    """Return what the process did with its model."""
    names = _names(planes)
    trains = _JAX_TRAINS if framework == "jax" else _TENSORFLOW_TRAINS
    kernels = {name for plane in planes if plane.device is not None for name in plane.names}
    if any(trains.search(name) for name in names) or any(is_training_kernel(name) for name in kernels):
        return "training"
    # Names of kernels alone do not say that there was no backward pass.
    if framework == "jax" and not any("jit(" in name for name in names):
        return "unknown"
    return "inference" if any(_MODEL.search(name) for name in names) else "unknown"


def _names(planes: Sequence[Plane]) -> set[str]:
    """Return the names of events, and of the operations that they are of."""
    return {name for plane in planes for name in (*plane.names, *plane.texts.values())}
