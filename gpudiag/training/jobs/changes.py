"""Apply the changes of `gpudiag profile --try` to a job. Importing this module does not import PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from gpudiag.errors import UsageError
from gpudiag.model.job import Change, Job, computed_in
from gpudiag.training.models.registry import is_own, workload_entry

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

#: Options of a job that make a change in a built-in workload. The change `fused` has no option: `train` calls `fused`.
#: The change `sdpa` (fused attention) fits no built-in workload.
_OPTIONS: dict[Change, dict[str, Any]] = {
    "tf32": {"precision": "tf32"},
    "channels-last": {"memory_format": "nhwc"},
    "compile": {"compile": True},
}


def changed(job: Job, change: Change) -> Job:
    """Return the job with this change. A user-defined workload must implement the change itself.

    Raise UsageError if the change does not fit the workload or the device. The message gives the reason.
    """
    reason = "CPUs have no tf32" if change == "tf32" and job.device == "cpu" else None
    options: dict[str, Any] = {}
    if not is_own(job.workload):
        reason = reason or _unfit(job, change)
        options = _OPTIONS.get(change, {})
    if reason is not None:
        raise UsageError(reason, "Leave it out.")
    return msgspec.structs.replace(job, change=change, **options)


def _unfit(job: Job, change: Change) -> str | None:
    """Return why a change does not fit a built-in workload; None if it fits, or if only training can show that."""
    entry = workload_entry(job.workload)
    precision = computed_in(job.precision, on_gpu=job.device == "cuda")
    no_channels_last = "its images are channels-last already" if job.memory_format == "nhwc" else None
    reasons: dict[Change, str | None] = {
        "tf32": None if precision == "fp32" else f"it computes in {precision} already",
        "channels-last": no_channels_last if entry.images else f"{entry.name} has no images",
        "sdpa": "its attention is fused already" if entry.attention else f"{entry.name} has no attention",
        "compile": "the model is compiled already" if job.compile else None,
    }
    return reasons.get(change)


def fused(make: Callable[[Iterable[nn.Parameter]], Optimizer]) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """Return a function that makes the optimizer that `make` returns, but in its fused implementation.

    The returned function raises UsageError if the optimizer has no fused implementation, or is fused already.
    """

    def make_fused(parameters: Iterable[nn.Parameter]) -> Optimizer:
        optimizer: Any = make(parameters)
        kind = type(optimizer)
        known = inspect.signature(kind).parameters
        if "fused" not in known:
            raise UsageError(f"{kind.__name__} has no fused implementation", "Leave it out.")
        if optimizer.defaults.get("fused"):
            raise UsageError(f"its {kind.__name__} is fused already", "Leave it out.")
        chosen = {"fused": True, "foreach": None}  # PyTorch allows only one of the two
        # `defaults` may contain names that the constructor does not accept.
        options = {name: value for name, value in optimizer.defaults.items() if name in known} | chosen
        return kind([group | chosen for group in optimizer.param_groups], **options)  # type: ignore[no-any-return]

    return make_fused
