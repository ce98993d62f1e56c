"""Make small analyses to compare."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gpudiag.model.analysis import BUCKETS, Analysis, Device, Finding, Portion, Source, Steps, Validity, Wait

#: Offsets of a device's steps from their mean.
JITTER_MS = (-0.1, 0.0, 0.1, -0.05, 0.05)


def run(*buckets_ms: dict[str, float], jitter_ms: tuple[float, ...] = JITTER_MS, **fields: Any) -> Analysis:
    """Make a run with one device for each argument.

    The step times of a device are the sum of its buckets plus each of `jitter_ms`. `fields` are further fields.
    """
    devices = tuple(
        Device(
            rank=rank,
            device=f"cuda:{rank}",
            name="NVIDIA H200",
            step_ms=sum(parts.values()),
            buckets_ms={bucket: parts.get(bucket, 0.0) for bucket in BUCKETS},
            hidden_communication_ms=0.0,
            step_times_ms=tuple(sum(parts.values()) + off for off in jitter_ms),
        )
        for rank, parts in enumerate(buckets_ms)
    )
    mean = sum(device.step_ms for device in devices) / max(len(devices), 1)
    fields.setdefault("steps", Steps(analysed=len(jitter_ms), mean_ms=mean, median_ms=mean))
    fields.setdefault("ranks_present", tuple(range(len(devices))))
    return Analysis(framework="pytorch", world_size=fields.pop("world_size", len(devices)), devices=devices, **fields)


def source(**fields: Any) -> Source:
    """Return a source with `fields`, and defaults for all other fields."""
    return Source(
        **{
            "paths": ("gpudiag-runs/main",),
            "workload": "resnet50",
            "strategy": "nccl",
            "batch_size_per_device": 64,
            "software": {"torch": "2.11.0", "nccl": "2.28.9"},
            **fields,
        }
    )


def healthy() -> Analysis:
    """Make four ranks that compute for 91 % of the step."""
    return run(
        *({"compute": 28.3, "communication_transfer": 0.8, "copy": 0.9, "idle": 1.2} for _ in range(4)),
        portions=(
            Portion(bucket="compute", name="gemm", per_step=53, device_ms=(20.0,) * 4),
            Portion(bucket="compute", name="relu", per_step=53, device_ms=(8.3,) * 4),
            Portion(
                bucket="communication_transfer",
                name="all_reduce",
                group="0",
                size_bytes=26_214_400,
                per_step=4,
                device_ms=(0.8,) * 4,
            ),
            Portion(
                bucket="communication_wait",
                name="all_reduce",
                group="0",
                size_bytes=26_214_400,
                per_step=4,
                device_ms=(0.0,) * 4,
            ),
            Portion(bucket="copy", name="Memcpy HtoD (Pinned -> Device)", per_step=1, device_ms=(0.9,) * 4),
            Portion(bucket="idle", name="queued", device_ms=(1.2,) * 4),
        ),
        findings=(Finding(code="compute-bound", severity="info", title="compute takes 91 % of the step"),),
        source=source(),
    )


def late_rank() -> Analysis:
    """Make four ranks: the input of rank 2 comes 26 ms late, and the other ranks wait in their all-reduce."""
    waiting = {"compute": 28.5, "communication_transfer": 0.8, "communication_wait": 25.8, "copy": 0.9, "idle": 1.2}
    late = {"compute": 28.3, "communication_transfer": 0.8, "copy": 0.9, "idle": 27.2}
    return run(
        waiting,
        waiting,
        late,
        waiting,
        waits=tuple(Wait(rank=rank, on_rank=2, ms_per_step=25.8, cause="input") for rank in (0, 1, 3)),
        portions=(
            Portion(bucket="compute", name="gemm", per_step=53, device_ms=(20.2, 20.2, 20.0, 20.2)),
            Portion(bucket="compute", name="relu", per_step=53, device_ms=(8.3,) * 4),
            Portion(
                bucket="communication_transfer",
                name="all_reduce",
                group="0",
                size_bytes=26_214_400,
                per_step=4,
                device_ms=(0.8,) * 4,
            ),
            Portion(
                bucket="communication_wait",
                name="all_reduce",
                group="0",
                size_bytes=26_214_400,
                per_step=4,
                device_ms=(25.8, 25.8, 0.0, 25.8),
            ),
            Portion(bucket="copy", name="Memcpy HtoD (Pinned -> Device)", per_step=1, device_ms=(0.9,) * 4),
            Portion(bucket="idle", name="queued", device_ms=(1.2,) * 4),
            Portion(bucket="idle", name="unmarked-input", device_ms=(0.0, 0.0, 26.0, 0.0)),
        ),
        findings=(
            Finding(
                code="straggler",
                severity="critical",
                ranks=(2,),
                cause="input",
                recoverable_ms_per_step=25.9,
                recoverable_percent=45.2,
                title="rank 2 waits for its input and the others wait",
            ),
        ),
        validity=(Validity(code="clock-skew", message="rank clocks agree only to ±1.30 ms (worst: rank 1)"),),
        source=source(paths=("gpudiag-runs/branch",), software={"torch": "2.12.0", "nccl": "2.28.9"}),
    )


def hostile() -> Analysis:
    """Make a run with malicious strings, and with parts that do not sum to their total."""
    evil = "[bold red]\x1b[2J\x1b]0;owned\x07</script>\u202egnirts\r\n[/] [link=http://evil]x[/link] :skull:"
    return Analysis(
        framework=evil,
        world_size=1,
        ranks_present=(0,),
        steps=Steps(analysed=0, mean_ms=1.0, median_ms=-1.0),
        devices=(
            Device(
                rank=0,
                device=evil,
                name=evil,
                step_ms=10.0,
                buckets_ms={"compute": 12.0, "copy": -5.0, evil: 3.0},
                hidden_communication_ms=-4.0,
            ),
        ),
        portions=(
            Portion(bucket="compute", name=evil * 50, per_step=-1, device_ms=(99.0,)),
            Portion(bucket=evil, name=evil, device_ms=(1.0,)),
            Portion(bucket="communication_wait", name=evil, group=evil, size_bytes=-1, device_ms=(1.0,)),
            Portion(bucket="communication_wait", name=evil, group=evil, size_bytes=-1, device_ms=(1.0,)),
            Portion(bucket="idle", name=evil, device_ms=(2.0,)),
        ),
        waits=(Wait(rank=0, on_rank=0, ms_per_step=9.0, cause=evil), Wait(rank=7, on_rank=9, ms_per_step=9.0)),
        findings=(Finding(code=evil, severity="critical", title=evil, cause=evil, recoverable_ms_per_step=5.0),) * 30,
        validity=(Validity(code=evil, message=evil),),
        source=Source(paths=(evil,), title=evil, workload=evil, strategy=evil, software={evil: evil, "torch": evil}),
    )


TIMES = st.floats(0, 1e4)
NAMES = st.sampled_from(["gemm", "relu", "softmax", "all_reduce"])


@st.composite
def analyses(draw: st.DrawFn, ranks: st.SearchStrategy[int] = st.integers(1, 5)) -> Analysis:  # noqa: B008 # immutable
    """Draw runs whose buckets sum to the step, and whose portions take at most the time of their buckets."""
    count = draw(ranks)
    buckets = [{bucket: draw(TIMES) for bucket in BUCKETS} for _ in range(count)]
    buckets[0]["compute"] += 1.0  # at least one device has a step
    steps = draw(st.lists(st.floats(-1, 1), min_size=0, max_size=6))
    portions = []
    for bucket in BUCKETS:
        names = draw(st.lists(st.tuples(NAMES, st.sampled_from([None, 1000, 2000])), max_size=3, unique=True))
        for name, size_bytes in names:
            # The portions of a bucket take at most the bucket's time on each device.
            shares = tuple(draw(st.floats(0, 1)) / len(names) * parts[bucket] for parts in buckets)
            portions.append(
                Portion(bucket=bucket, name=name, group="0", size_bytes=size_bytes, per_step=1, device_ms=shares)
            )
    pairs = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=4))
    return run(
        *buckets,
        jitter_ms=tuple(steps),
        portions=tuple(portions),
        waits=tuple(Wait(rank=a, on_rank=b, ms_per_step=draw(TIMES)) for a, b in sorted(pairs)),
        findings=tuple(
            Finding(code=code, severity="warning", ranks=(0,))
            for code in draw(st.lists(st.sampled_from(["straggler", "slow-copy", "throttled"]), max_size=3))
        ),
    )
