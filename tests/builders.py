"""Build complete analyses with made-up values for tests of reports."""

from __future__ import annotations

from typing import Any

from gpudiag.model.analysis import (
    BUCKETS,
    Analysis,
    CollectiveSummary,
    Device,
    Finding,
    KernelSummary,
    Modules,
    ModuleTime,
    Source,
    Steps,
    Validity,
    Wait,
)
from gpudiag.model.run import ComputeRate


def device(rank: int, name: str = "NVIDIA H200", hidden: float = 0.0, ordinal: str = "", **buckets_ms: float) -> Device:
    """Return a device whose step time is the sum of the given buckets, the parts of the step time.

    `hidden` is the communication in ms that compute hides, and `ordinal` the device (default: `cuda:RANK`).
    """
    return Device(
        rank=rank,
        device=ordinal or f"cuda:{rank}",
        name=name,
        step_ms=sum(buckets_ms.values()),
        buckets_ms={bucket: buckets_ms.get(bucket, 0.0) for bucket in BUCKETS},
        hidden_communication_ms=hidden,
    )


def analysis(*devices: Device, **fields: Any) -> Analysis:
    """Return an analysis of `devices`; the step time is the first device's by default."""
    step_ms = devices[0].step_ms if devices else 0.0
    fields.setdefault("framework", "pytorch")
    fields.setdefault("world_size", len(devices))
    fields.setdefault("ranks_present", tuple(sorted({device.rank for device in devices})))
    fields.setdefault("steps", Steps(analysed=6, mean_ms=step_ms, median_ms=step_ms))
    return Analysis(devices=devices, **fields)


def late_loader() -> Analysis:
    """Return an analysis of four ranks with late input on rank 2; values are from the trace `slow_loader_rank2`."""
    return analysis(
        device(0, compute=29.4, communication_transfer=0.8, communication_wait=26.1, launch=0.2, idle=0.1, hidden=3.9),
        device(1, compute=29.5, communication_transfer=0.8, communication_wait=26.0, launch=0.2, idle=0.1, hidden=3.9),
        device(2, compute=29.3, communication_transfer=0.9, copy=0.6, input=25.6, launch=0.1, idle=0.1, hidden=1.2),
        device(3, compute=29.4, communication_transfer=0.8, communication_wait=26.2, launch=0.1, idle=0.1, hidden=3.8),
        steps=Steps(
            analysed=6,
            mean_ms=56.6,
            median_ms=56.5,
            unprofiled_mean_ms=57.1,
            reasons={"corrected_mean_ms": "the steps are bound by the device, not by the host"},
        ),
        waits=(
            Wait(rank=0, on_rank=2, ms_per_step=26.1, cause="input"),
            Wait(rank=1, on_rank=2, ms_per_step=26.0, cause="input"),
            Wait(rank=3, on_rank=2, ms_per_step=26.2, cause="input"),
        ),
        findings=(
            Finding(
                code="straggler",
                severity="critical",
                ranks=(2,),
                cause="input",
                recoverable_ms_per_step=26.1,
                recoverable_percent=46.1,
                confidence="high",
                title="Rank 2's input comes late, and the other ranks wait for it",
                evidence={"waiting_ranks": [0, 1, 3], "mean_wait_ms": 26.1, "late_by_ms": 25.6, "input_ms": 25.6},
                advice=(
                    "Give rank 2's loader more workers, or prefetch: DataLoader(num_workers=8, prefetch_factor=4).",
                    "Look at rank 2's storage and CPU: the other ranks read the same amount in time.",
                ),
            ),
            Finding(
                code="communication-bound",
                severity="info",
                recoverable_ms_per_step=0.8,
                recoverable_percent=1.4,
                confidence="medium",
                title="Gradient exchange is exposed for a moment at the end of each step",
                evidence={"exposed_transfer_ms": 0.8, "busbw_gb_per_s": 251.0},
                advice=("Nothing: 1 % is not worth the work.",),
            ),
        ),
        collectives=(
            CollectiveSummary(
                operation="all_reduce",
                group="default_pg",
                ranks=4,
                size_bytes=26_214_400,
                per_step=3,
                transfer_us=155.0,
                wait_us=8700.0,
                busbw_gb_per_s=253.7,
                probe_busbw_gb_per_s=294.6,
            ),
            CollectiveSummary(
                operation="all_reduce",
                group="default_pg",
                ranks=4,
                size_bytes=None,
                per_step=2,
                transfer_us=21.0,
                wait_us=12.0,
            ),
        ),
        kernels=(
            KernelSummary(
                name="void at::native::batch_norm_backward_kernel<c10::BFloat16, float, float, int>(int)",
                ms_per_step=4.31,
                per_step=53,
            ),
            KernelSummary(
                name="sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x64",
                ms_per_step=2.2,
                per_step=17,
            ),
            KernelSummary(name="nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT", ms_per_step=0.91, per_step=3),
        ),
        source=Source(
            paths=("traces/rank0.pt.trace.json.gz", "traces/rank1.pt.trace.json.gz"),
            title="slow_loader_rank2",
            workload="resnet50",
            strategy="nccl",
            batch_size_per_device=64,
            samples_per_s=4483.4,
            software={"torch": "2.11.0+cu130", "cuda": "13.0", "nccl": "2.28.9"},
        ),
    )


def processor_only() -> Analysis:
    """Return an analysis of two CPU processes under gloo, from traces alone, without significant findings."""
    return analysis(
        device(0, name="", ordinal="cpu", compute=41.2, communication_transfer=3.3, input=1.1, idle=0.4),
        device(1, name="", ordinal="cpu", compute=40.9, communication_transfer=3.2, input=1.4, idle=0.5),
        steps=Steps(analysed=3, mean_ms=46.0, median_ms=45.9, reasons={"unprofiled_mean_ms": "no run record"}),
        findings=(
            Finding(
                code="compute-bound",
                severity="info",
                confidence="high",
                title="Nothing here is worth 5 % of the step: the devices compute",
                evidence={"reason": "no other cause reaches 5 %", "compute_percent": 89.2},
                advice=("Look at the kernels: mixed precision, larger batches, a compiled model.",),
            ),
        ),
        validity=(
            Validity(code="few-steps", message="3 steps were analysed; record 5 or more for a steadier mean"),
            Validity(code="no-step-marks", message="no step marks: steps were found from a repeating pattern"),
        ),
        source=Source(paths=("rank0.json", "rank1.json")),
    )


def module(
    path: str,
    forward: float,
    backward: float,
    *,
    root: str = "GPT",
    kind: str = "Linear",
    own: float = 1.0,
    devices: int = 1,
) -> ModuleTime:
    """Return the times in ms of a module, equal on all devices; `own` is the share outside of its submodules."""
    return ModuleTime(
        root=root,
        path=path,
        type=kind,
        calls=1,
        forward_ms=(forward,) * devices,
        backward_ms=(backward,) * devices,
        own_forward_ms=(own * forward,) * devices,
        own_backward_ms=(own * backward,) * devices,
    )


def gpt_modules(devices: int = 1) -> Modules:
    """Return module times of a GPT: twelve blocks of 1 ms forward and 2 ms backward, half of which is attention."""
    times = [
        module("", 14.5, 29.0, kind="GPT", own=1 / 29, devices=devices),  # 0.5 of 14.5 ms
        module("tokens", 0.2, 0.4, kind="Embedding", devices=devices),
    ]
    for number in range(12):
        block = f"blocks.{number}"
        times += [
            module(block, 1.0, 2.0, kind="Block", own=0.1, devices=devices),
            module(f"{block}.norm", 0.1, 0.2, kind="LayerNorm", devices=devices),
            module(f"{block}.attention", 0.5, 1.0, kind="Attention", own=0.5, devices=devices),
            module(f"{block}.attention.qkv", 0.25, 0.5, devices=devices),
            module(f"{block}.mlp", 0.3, 0.6, kind="Sequential", own=0, devices=devices),
            module(f"{block}.mlp.0", 0.15, 0.3, devices=devices),
            module(f"{block}.mlp.2", 0.15, 0.3, devices=devices),
        ]
    times += [
        module("head", 1.8, 3.6, devices=devices),
        module("", 0.05, 0.1, root="CrossEntropyLoss", kind="CrossEntropyLoss", devices=devices),
    ]
    return Modules(times=tuple(times), outside_ms=(4.2,) * devices)


def many_ranks(count: int = 64, late: int = 17) -> Analysis:
    """Return an analysis of many ranks, one of which computes more slowly than the others."""
    devices = tuple(
        device(rank, compute=48.0, communication_transfer=3.0, idle=0.3, hidden=0.5)
        if rank == late
        else device(
            rank, compute=36.0 + 0.01 * (rank % 7), communication_transfer=3.0, communication_wait=12.0, idle=0.3
        )
        for rank in range(count)
    )
    return analysis(
        *devices,
        steps=Steps(analysed=10, mean_ms=51.3, median_ms=51.3),
        compute=ComputeRate(
            flops_per_step=11_700_000_000_000,
            recomputed_flops_per_step=3_900_000_000_000,
            precision="bf16",
            by_precision={"bf16": 11_700_000_000_000},
            unknown=("flash_attn._flash_attn_forward",),
            tflops_per_s=228.1,
            peak_tflops=989.0,
            peak_source="NVIDIA H200 datasheet (2024), SXM",
            mfu_percent=23.06,
        ),
        modules=gpt_modules(count),
        waits=tuple(
            Wait(rank=rank, on_rank=late, ms_per_step=12.0 - 0.01 * (rank % 7), cause="clock")
            for rank in range(count)
            if rank != late
        ),
        findings=(
            Finding(
                code="straggler",
                severity="critical",
                ranks=(late,),
                cause="clock",
                recoverable_ms_per_step=12.0,
                recoverable_percent=23.4,
                confidence="medium",
                title=f"Rank {late} computes more slowly than the others, which wait for it",
                evidence={"compute_ms": 48.0, "median_compute_ms": 36.0},
                advice=(
                    f"Look at rank {late}'s GPU clock, power and temperature: nvidia-smi -q -d CLOCK,PERFORMANCE.",
                ),
            ),
        ),
    )


def hostile() -> Analysis:
    """Return an analysis with invalid values, and names with markup, escape sequences and right-to-left overrides."""
    evil = "[bold red]\x1b[2J\x1b]0;owned\x07</script>\u202egnirts\r\n[/] [link=http://evil]x[/link] :skull:"
    return analysis(
        Device(
            rank=0,
            device=evil,
            name=evil,
            step_ms=10.0,
            buckets_ms={"compute": 12.0, "copy": -5.0, "idle": float("inf"), evil: 3.0},
            hidden_communication_ms=float("nan"),
        ),
        steps=Steps(analysed=0, mean_ms=float("nan"), median_ms=-1.0, reasons={"corrected_mean_ms": evil}),
        waits=(Wait(rank=0, on_rank=0, ms_per_step=9.0, cause=evil),),
        findings=(
            Finding(
                code=evil,
                severity="critical",
                title=evil,
                recoverable_ms_per_step=5.0,
                recoverable_percent=50.0,
                evidence={evil: {evil: [evil] * 200}},
                advice=(evil, "x" * 5000),
            ),
        ),
        validity=(Validity(code=evil, message=evil),),
        collectives=(
            CollectiveSummary(
                operation=evil, group=evil, ranks=0, size_bytes=-1, per_step=1e30, transfer_us=-1, wait_us=0
            ),
        ),
        kernels=(KernelSummary(name=evil * 50, ms_per_step=1.0, per_step=1),),
        modules=Modules(
            times=(module("", 3.0, float("nan"), root=evil, kind=evil), module(evil * 50, 2.0, -1.0, kind=evil))
        ),
        source=Source(paths=(evil,), title=evil, workload=evil, strategy=evil, software={evil: evil}),
    )
