"""Build XSpaces: `SpaceBuilder().gpu(0, stream=7).event("gemm", 0, 5, correlation_id=1)`; times in µs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpudiag.model.protobuf import message_type

if TYPE_CHECKING:
    from pathlib import Path

PS_PER_US = 10**6


class LineBuilder:
    """A line of a plane, which is a list of events."""

    def __init__(self, plane: Any, line: Any) -> None:
        self._plane = plane
        self._line = line

    def event(self, name: str, begin_us: float, end_us: float, **stats: int | str) -> LineBuilder:
        """Add an event with `stats`, and return the line. Times count from the line's timestamp."""
        duration = round((end_us - begin_us) * PS_PER_US)
        event = self._line.events.add(
            metadata_id=_number(self._plane.event_metadata, name),
            offset_ps=round(begin_us * PS_PER_US),
            duration_ps=duration,
        )
        for key, value in stats.items():
            stat = event.stats.add(metadata_id=_number(self._plane.stat_metadata, key))
            if isinstance(value, str):
                stat.ref_value = _number(self._plane.stat_metadata, value)
            else:
                stat.int64_value = value
        return self


class SpaceBuilder:
    """Build an XSpace plane by plane; `begun_ns` is the start time of the profile."""

    def __init__(self, host: str = "node-a", begun_ns: int = 1_795_000_000_000_000_000) -> None:
        self.space = message_type("xplane", "XSpace")()
        self.space.hostnames.append(host)
        environment = self._plane("Task Environment")
        environment.stats.add(
            metadata_id=_number(environment.stat_metadata, "profile_start_time"), uint64_value=begun_ns
        )

    def _plane(self, name: str) -> Any:
        for plane in self.space.planes:
            if plane.name == name:
                return plane
        return self.space.planes.add(name=name)

    def gpu(self, ordinal: int, stream: int) -> LineBuilder:
        plane = self._plane(f"/device:GPU:{ordinal}")
        line = plane.lines.add(id=stream, name=f"Stream #{stream}(Compute)", timestamp_ns=1000)
        return LineBuilder(plane, line)

    def thread(self, ident: int, name: str = "tf_Compute") -> LineBuilder:
        plane = self._plane("/host:CPU")
        return LineBuilder(plane, plane.lines.add(id=ident, name=name, timestamp_ns=1000))

    def data(self) -> bytes:
        data: bytes = self.space.SerializeToString()
        return data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data())
        return path


def _number(entries: Any, name: str) -> int:
    for number, entry in entries.items():
        if entry.name == name:
            return int(number)
    number = len(entries) + 1
    entries[number].id, entries[number].name = number, name
    return number


def two_gpus(steps: int = 4) -> SpaceBuilder:
    """Build a job on two GPUs: each step has an input, a kernel and an all-reduce, which GPU 1 enters 100 µs later."""
    built = SpaceBuilder()
    python, compute = built.thread(1, "python3"), built.thread(2)
    streams = {gpu: built.gpu(gpu, stream=7) for gpu in (0, 1)}
    correlation = 0
    for step in range(steps):
        at = 1000.0 * step
        python.event("train", at, at + 990, step_num=step, _r=1)
        python.event("IteratorGetNextOp::DoCompute", at + 5, at + 45)
        python.event("KernelAndDeviceFunc::Run", at + 50, at + 980)
        compute.event("ExecutorState::Process", at + 55, at + 200)
        for gpu, late in ((0, 0), (1, 100)):
            for name, begin, end in (
                ("gemm", at + 100, at + 500 + late),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", at + 500 + late, at + 900),
            ):
                correlation += 1
                call = at + 60 + correlation % 4 * 10  # a step's four calls begin at different times
                compute.event(name, call, call + 5, correlation_id=correlation, device_id=gpu)
                extra = {"buffer_size": 4096} if name.startswith("nccl") else {}
                streams[gpu].event(name, begin, end, correlation_id=correlation, **extra)
    return built
