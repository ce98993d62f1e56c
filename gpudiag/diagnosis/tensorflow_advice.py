"""What to do about a finding in TensorFlow, where the rules' advice names PyTorch's ways."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gpudiag.model.analysis import Finding

#: Lines of advice that mean nothing to a TensorFlow user.
_PYTORCH = re.compile(
    r"torch\b|torchrun|DataLoader|\bDDP|pin_memory|persistent_workers|no_sync\(|bucket_cap_mb|fused=True|\.item\(\)|prof\.steps"
)

_PIPELINE = (
    "Let tf.data prepare batches ahead: map(…, num_parallel_calls=tf.data.AUTOTUNE), then batch, then "
    "prefetch(tf.data.AUTOTUNE) as the last of the pipeline; cache() what is decoded once."
)
_COMPILE = "jit_compile=True (--compile) for the model and its optimizer makes few kernels of many."
_SEVERAL_STEPS = (
    "Several steps in one tf.function, or steps_per_execution of model.compile, keep Python and the ends of functions "
    "out of the step."
)

#: By code of the finding; where it depends on the cause, by `code: cause`.
_ADVICE: dict[str, tuple[str, ...]] = {
    "input-bound": (_PIPELINE,),
    "straggler: input": (_PIPELINE,),
    "straggler: copy": ("Check the PCIe link of its GPU: `gpudiag bandwidth`.",),
    "straggler: launch": ("Give its process CPU cores of its own, near the GPU (numactl, taskset).",),
    "launch-bound": (_COMPILE, "A larger batch lets each kernel do more.", _SEVERAL_STEPS),
    "host-sync": (
        "Read losses and metrics (.numpy(), float(), print) every N steps, not in each.",
        "NcclAllReduce and copies to the CPU hold up what is launched after them. " + _SEVERAL_STEPS,
        _COMPILE,
    ),
    "communication-bound": (
        "Send fewer bytes: exchange the gradients of several batches at once, added up first.",
        "Hide more: larger batches per device; compare `--strategy nccl`, `multi-worker` and `hierarchical-copy`.",
    ),
    "compute-bound": (
        "Faster kernels help now: a mixed_bfloat16 policy, channels last, jit_compile=True, a larger batch.",
    ),
    "slow-copy": (
        "Let tf.distribute copy ahead: a distributed dataset, prefetched, instead of arrays fed to each step.",
    ),
}


def in_tensorflow(finding: Finding) -> Finding:
    """The finding with advice that a TensorFlow user can follow; what holds for both frameworks stays."""
    own = _ADVICE.get(f"{finding.code}: {finding.cause}", _ADVICE.get(finding.code, ()))
    both = tuple(line for line in finding.advice if not _PYTORCH.search(line))
    return msgspec.structs.replace(finding, advice=(*own, *both))
