"""How a training loop of one's own uses a strategy: its flags for gpudiag, and the lines for the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudiag.model.prediction import Candidate

_DDP = "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])"

_LINES = {
    "nccl": ('torch.distributed.init_process_group("nccl")', _DDP),
    "gloo": (
        'torch.distributed.init_process_group("gloo")',
        "model = torch.nn.parallel.DistributedDataParallel(model)",
    ),
    "cpu-reduce": (
        "from gpudiag.strategies.cpu_reduce import CpuReduceHook",
        _DDP,
        "hook = CpuReduceHook(device{wire})",
        "model.register_comm_hook(None, hook)",
        "...  # train; then:",
        "hook.close()",
    ),
    "fsdp": (
        "from torch.distributed.fsdp import fully_shard",
        "for block in model.children():",
        "    fully_shard(block)",
        "fully_shard(model)",
    ),
    "data-parallel": ("model = torch.nn.DataParallel(model)",),
    "ps-cpu": ("# see gpudiag/strategies/ps_cpu.py; `gpudiag profile --strategy ps-cpu` runs it",),
    "ps-gpu": ("# see gpudiag/strategies/ps_gpu.py; `gpudiag profile --strategy ps-gpu` runs it",),
    "independent": ("# nothing is exchanged: the processes train different models",),
}
_HOOK = (
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
    "model.register_comm_hook(None, default_hooks.{compress}_compress_hook)",
)


def flags(candidate: Candidate, *, p2p: bool = True) -> tuple[str, ...]:
    """Options for `gpudiag profile`."""
    return ("--strategy", candidate.strategy, *candidate.options, *(() if p2p else ("--no-p2p",)))


def code_change(candidate: Candidate) -> str:
    """The lines for a PyTorch training loop, one per line."""
    wire = f', wire="{candidate.compress}"' if candidate.compress else ""
    lines = [line.replace("{wire}", wire) for line in _LINES.get(candidate.strategy, ())]
    if candidate.bucket_mb is not None:
        lines = [
            line.replace("device_ids=[local_rank])", f"device_ids=[local_rank], bucket_cap_mb={candidate.bucket_mb:g})")
            for line in lines
        ]
    if candidate.compress is not None and candidate.strategy in {"nccl", "gloo"}:
        lines += [line.replace("{compress}", candidate.compress) for line in _HOOK]
    return "\n".join(lines)
