"""Tell training from inference by the names of what PyTorch's profiler recorded."""

from __future__ import annotations

import re

import numpy as np

from gpudiag.model.analysis import WorkloadKind
from gpudiag.model.event import EventKind, EventTable
from gpudiag.trace.readers.workload import is_optimizer_kernel, is_training_kernel

#: Operators and ranges of a backward pass or an update: autograd's nodes (`MulBackward0`, `CompiledFunctionBackward`),
#: `aten::convolution_backward`, hooks of DDP and FSDP, ranges that users name so. Megatron's `forward_backward_func`
#: also evaluates.
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
#: Operators of a model, or kernels of its layers: anything that multiplies, normalizes, attends or looks up.
_MODEL = re.compile(
    r"aten::(?:_?\w*mm\b|addmm|bmm|baddbmm|matmul|linear|conv\w*|_convolution|cudnn_convolution|miopen_\w+|\w*layer_norm"
    r"|\w*batch_norm|\w*rms_norm|\w*softmax|\w*attention\w*|embedding\w*|\w*scaled_mm|relu\w*|gelu|silu|sigmoid|tanh)"
    r"|nn\.Module: |gpudiag\.module:|fbgemm::|vllm::|sgl_kernel::|aiter::|flash_attn::|(?:## )?forward(?: ##)?$"
    r"|## Call CompiledFxGraph|execute_|model_inference|.*(?:gemm|attn|attention|conv|Cijk_|norm|softmax)",
    re.IGNORECASE,
)
_OF_HOST = (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.MODULE)


def workload_of(table: EventTable) -> WorkloadKind:
    """Return what a process did with its model.

    Kernels alone prove training; that there was none can only be known where operators were recorded.
    """
    names: dict[int, list[str]] = {}
    for kind in EventKind:
        used = np.flatnonzero(np.bincount(table.name[table.kind == int(kind)], minlength=len(table.names)))
        names[int(kind)] = [table.names[index] for index in used.tolist()]
    on_host = [name for kind in _OF_HOST for name in names[kind]]
    kernels = names[EventKind.KERNEL]
    if any(_TRAINING.match(name) for name in on_host):
        return "training"
    if any(_TRAINING_FUNCTION.search(name) for name in names[EventKind.PYTHON]):
        return "training"
    proves = is_optimizer_kernel if names[EventKind.OPERATOR] else is_training_kernel
    if any(proves(name) for name in kernels):
        return "training"
    if not names[EventKind.OPERATOR]:
        return "unknown"
    return "inference" if any(_MODEL.match(name) for name in (*on_host, *kernels)) else "unknown"
