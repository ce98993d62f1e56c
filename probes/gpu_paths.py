"""Run several GPU probes in one process: copies to and from the host, copies between GPUs, NCCL.

CUDA contexts and pinned memory are created only once, because creating them takes longer than most measurements, and
the driver creates contexts sequentially. NCCL comes last, because NCCL enables peer access when it connects. The result
of each part is a separate line, which is written when the part is complete, in the format of copy_host.py, copy_peer.py
or allreduce_nccl.py.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import allreduce_nccl
import copy_host
import copy_peer
from _clocks import Sensors, warm_up
from _cuda import Gpu, open_gpus
from _flows import Gate
from _protocol import Probe

if TYPE_CHECKING:
    from _nccl import Nccl

_SCHEMAS = {"host": copy_host.SCHEMA, "peer": copy_peer.SCHEMA, "nccl": allreduce_nccl.SCHEMA}


class GpuProbes:
    """The GPUs, their buffers, and the measurements of each part."""

    def __init__(self, probe: Probe, options: argparse.Namespace, gpus: list[Gpu]) -> None:
        self.options, self.gpus = options, gpus
        self.sensors = Sensors(gpus)
        if self.sensors.reason:
            probe.skip("PCIe link under load", self.sensors.reason)
        self.nccl: Nccl | str = allreduce_nccl.load_nccl(probe) if "nccl" in options.parts else ""
        with probe.phase("buffers"):
            self.host = copy_host.HostBench(gpus, quick=options.quick)
            self.gate = Gate(gpus)

    def warm_up(self) -> list[dict[str, int]]:
        """Keep the GPUs busy until their clocks are stable, and return the clocks."""
        return warm_up(self.gpus, self.sensors, self.host.buffers(), self.host.device_bytes)

    def measure_peer(self, part: Probe) -> None:
        """Measure the part `peer`. Afterwards peer access stays enabled."""
        sides = [copy_peer.Side(side.gpu, side.source, side.target, side.device_seed) for side in self.host.sides]
        bench = copy_peer.PeerBench(part, sides, self.host.device_bytes, quick=self.options.quick)
        part.write(**bench.measure(part, self.gate, self.options.seconds))

    def measure_nccl(self, part: Probe) -> None:
        """Connect NCCL and measure the part `nccl`."""
        if isinstance(self.nccl, str):
            part.write(unavailable=self.nccl)
            return
        part.progress("connecting NCCL", 0, 1)
        buffers, size = self.host.buffers(), self.host.device_bytes
        strategies = self.options.strategies
        bench = allreduce_nccl.Bench(part, self.nccl, self.gpus, strategies=strategies, buffers=buffers, largest=size)
        part.write(**bench.measure_all(part, self.gate, self.options.seconds, quick=self.options.quick))


def parts_of(text: str) -> list[str]:
    """Return the parts named in `text`, in the order of measuring."""
    names = text.split(",")
    for name in names:
        if name not in _SCHEMAS:
            raise argparse.ArgumentTypeError(f"there is no part {name!r}; there are {', '.join(_SCHEMAS)}")
    return [name for name in _SCHEMAS if name in names]


def main() -> None:
    """Measure the requested parts."""
    probe = Probe(copy_host.SCHEMA, __doc__.splitlines()[0])
    probe.parser.add_argument("--parts", type=parts_of, default="host,peer", help="comma-separated: host, peer, nccl")
    allreduce_nccl.add_strategies(probe.parser)
    options = probe.options()
    gpus = open_gpus(probe)
    session: GpuProbes | None = None
    with probe.attempt("allocating buffers"):
        session = GpuProbes(probe, options, gpus)
    probe.ready()
    clocks: list[dict[str, int]] = []
    if session is not None:
        probe.progress("warming up", 0, 1)
        with probe.phase("warming up"):
            clocks = session.warm_up()
    for number, name in enumerate(options.parts):
        part = probe.part(_SCHEMAS[name])
        if number == 0:
            # The first part includes the errors and times of loading.
            part.errors, part.skipped, part.phases = probe.errors, probe.skipped, probe.phases
            part.measuring_since = probe.measuring_since
        if session is None:
            part.write(gpus=[gpu.describe() for gpu in gpus])
        elif name == "host":
            part.write(**session.host.measure(part, session.gate, session.sensors, clocks, options.seconds))
        elif len(gpus) < 2:
            part.write(unavailable="this needs two GPUs")
        elif name == "peer":
            session.measure_peer(part)
        else:
            session.measure_nccl(part)
    probe.exit()


if __name__ == "__main__":
    main()
