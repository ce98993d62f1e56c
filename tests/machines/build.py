"""Build the recorded machines in this directory from published measurements. Tests read only the output.

    python tests/machines/build.py DATA_DIRECTORY H200_DIRECTORY

Sources, by machine:

- `7gforce`, `7gforce-v2`, `az-2x-m60`, `az-4x-m60`: rossumai/keras-multi-gpu, `hardware.md` and `topology/`. The SM
  clocks of 7gforce are in its blog post, where TensorFlow's device log calls them `memoryClockRate`. 1.7715 and 1.6830
  GHz are boost clocks of a GTX 1070, which differ by maker of the board; its memory clock is 4.0 GHz.
- `dgx-1`, `gcp-8x-v100`: peer access from `constants.py` of tf_cnn_benchmarks, without bandwidths.
- `patrick-4x`: four RTX 2080 Ti with unknown links. One all-reduce rate was inferred from a trace.
- `staging-area-box`: one GTX 980 Ti on x16, from a side note of `hardware.md`.
- `h200x4`: nvbandwidth 0.8 and nvidia-smi on a virtual machine with 4 H200, NVLink full mesh.

Not included: rows that `p2pBandwidthLatencyTest` labels "peer access enabled" for pairs without peer access (the data
is staged there too), the parallel-forall 16 MB rows (single copies, which include launch cost), and nvbandwidth's
host-to-device "bidirectional" figures, which report one direction only.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from gpudiag.machine.inventory.host.pci import normal_pci_id
from gpudiag.machine.inventory.links import find_islands
from gpudiag.model.facts import (
    Bandwidth,
    Clock,
    Collective,
    Facts,
    Gpu,
    Host,
    Latency,
    Link,
    NumaNode,
    NvLink,
    PcieLink,
)
from gpudiag.model.throttle import reasons_in_words

HERE = Path(__file__).parent
MIB = 1 << 20
GIB = 1 << 30
#: Bytes of a copy by `p2pBandwidthLatencyTest`.
P2P_BYTES = 160_000_000
DEFAULT_FALSE = ("repeats", "lanes", "under_load", "own")

GTX_1070, GTX_1080 = "GeForce GTX 1070", "GeForce GTX 1080"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def gforce_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of 7gforce: six GTX 1070 on one-lane risers, and a GTX 1080."""
    boost_mhz = (1772, 1683, 1683, 1683, 1772, 1772)
    risers = [
        Gpu(
            index=index,
            name=GTX_1070,
            memory_bytes=8 * GIB,
            sm_clock=Clock(maximum_mhz=mhz),
            power_limit_watts=151.0,
            pcie=PcieLink(width=1),
            compute_capability=(6, 1),
        )
        for index, mhz in enumerate(boost_mhz)
    ]
    return (
        *risers,
        Gpu(
            index=6,
            name=GTX_1080,
            memory_bytes=8 * GIB,
            power_limit_watts=200.0,
            pcie=PcieLink(width=8),
            compute_capability=(6, 1),
        ),
    )


def gforce_v2_gpus() -> tuple[Gpu, ...]:
    models = (GTX_1070, "GeForce GTX 1080 Ti", "GeForce GTX 1080 Ti", GTX_1070, GTX_1070, *["GeForce GTX 1080 Ti"] * 2)
    return tuple(
        Gpu(index=i, name=name, numa_node=0 if i < 4 else 1, cpu_affinity="0-9,20-29" if i < 4 else "10-19,30-39")
        for i, name in enumerate(models)
    )


def like(count: int, name: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=i, name=name) for i in range(count))


def topology(data: Path, machine: str) -> dict[tuple[int, int], str]:
    return {
        (int(row["src"]), int(row["dst"])): row["link"]
        for row in rows(data / "topology.csv")
        if row["machine"] == machine and int(row["src"]) < int(row["dst"])
    }


def place(text: str) -> str:
    return "host" if text == "host" else f"gpu:{text}"


def measured(data: Path, machine: str) -> dict[str, Any]:
    """Return the fields of a machine's facts that the published tables in `data` contain: links, bandwidth, latency."""
    table = [row for row in rows(data / "bandwidth_latency.csv") if row["machine"] == machine]
    can = {
        (int(row["src"]), int(row["dst"])): row["value"] == "1" for row in table if row["quantity"] == "can_access_peer"
    }
    kinds = topology(data, machine)
    links = tuple(
        # Before driver 390 nvidia-smi wrote SOC instead of SYS.
        Link(a=a, b=b, kind=kind.replace("SOC", "SYS"), peer_access=can.get((a, b)))
        for (a, b), kind in sorted(kinds.items())
    )
    bandwidth, latency = [], []
    for row in table:
        value = float(row["value"])
        source, destination = place(row["src"]), place(row["dst"])
        if row["tool"].startswith("bandwidthTest"):
            path = (
                "host_to_device"
                if source == "host"
                else "device_to_host"
                if destination == "host"
                else "device_to_device"
            )
            memory: Any = "device" if path == "device_to_device" else "pinned"
            bandwidth.append(
                Bandwidth(
                    path=path,
                    src=source,
                    dst=destination,
                    memory=memory,
                    direction="one_way",
                    size_bytes=32 * MIB,
                    gb_per_s=value,
                )
            )
        elif row["tool"] == "p2pBandwidthLatencyTest" and source != destination and row["p2p"]:
            enabled = row["p2p"] == "enabled"
            if enabled and not can.get((int(row["src"]), int(row["dst"]))):
                continue  # the data was staged; see the module's docstring
            if row["quantity"] == "latency":
                latency.append(
                    Latency(kind="small_copy", src=source, dst=destination, time_us=value, peer_access=enabled)
                )
            elif row["quantity"] == "bandwidth":
                bandwidth.append(
                    Bandwidth(
                        path="peer",
                        src=source,
                        dst=destination,
                        memory="device",
                        direction="one_way" if row["direction"] == "uni" else "both_ways",
                        peer_access=enabled,
                        size_bytes=P2P_BYTES,
                        gb_per_s=value,
                    )
                )
    return {"links": links, "bandwidth": tuple(bandwidth), "latency": tuple(latency)}


def peer_only(data: Path, machine: str) -> dict[str, Any]:
    return {
        "links": tuple(
            Link(a=a, b=b, kind="unknown", peer_access=text.startswith("P2P"))
            for (a, b), text in sorted(topology(data, machine).items())
        )
    }


def nvbandwidth_rows(text: str, title: str) -> list[list[float | None]]:
    """Parse the matrix, without row and column numbers, below a heading in nvbandwidth's output; N/A becomes None."""
    block = text.split(title, 1)[1].split("\nSUM", 1)[0].splitlines()[2:]
    return [[None if cell == "N/A" else float(cell) for cell in line.split()[1:]] for line in block if line.strip()]


def h200(directory: Path) -> Facts:
    """Return the facts of the H200 machine from the saved output of nvbandwidth and nvidia-smi."""
    measured_text = (directory / "nvbandwidth.txt").read_text()
    smi = (directory / "nvidia-smi.txt").read_text()
    uuids = re.findall(r"UUID: (GPU-[0-9a-f-]+)", smi)
    gpus = []
    for line in re.findall(r"^\d, NVIDIA H200, .*$", smi, re.MULTILINE):
        c = [cell.strip() for cell in line.split(",")]
        # without units; 0 for hexadecimal cells and for cells without digits
        number = [float(re.sub(r"[^\d.]", "", cell) or 0) if not cell.startswith("0x") else 0.0 for cell in c]
        index = int(c[0])
        gpus.append(
            Gpu(
                index=index,
                name=c[1],
                uuid=uuids[index] if index < len(uuids) else None,
                pci_id=normal_pci_id(c[2]),
                compute_capability=(9, 0),
                pcie=PcieLink(
                    generation=int(c[3]), maximum_generation=int(c[4]), width=int(c[5]), maximum_width=int(c[6])
                ),
                memory_clock=Clock(current_mhz=int(number[7]), maximum_mhz=int(number[8])),
                sm_clock=Clock(current_mhz=int(number[9]), maximum_mhz=int(number[10])),
                throttle_reasons=reasons_in_words(int(c[11], 16)),
                power_watts=number[12],
                power_limit_watts=number[13],
                temperature_c=int(c[14]),
                ecc=c[15] == "Enabled",
                mig=c[16] == "Enabled",
                persistence=c[17] == "Enabled",
                compute_mode=c[18].lower(),
                memory_bytes=143771 * MIB,
                nvlinks=tuple(
                    NvLink(lane=lane, active=True, version=4, gb_per_s=26.562, remote_kind="switch")
                    for lane in range(18)
                ),
                cpu_affinity="0-63",
                numa_node=0,
                reasons={
                    "sm_clock.application_mhz": "not supported by this GPU or in this mode",
                    "memory_clock.application_mhz": "not supported by this GPU or in this mode",
                },
            )
        )
    bandwidth: list[Bandwidth] = []

    def host(title: str, path: str) -> None:
        """Add the copies between the host and each GPU below the heading `title`."""
        for index, value in enumerate(nvbandwidth_rows(measured_text, title)[0]):
            ends = ("host", f"gpu:{index}") if path == "host_to_device" else (f"gpu:{index}", "host")
            bandwidth.append(
                Bandwidth(
                    path=path,
                    src=ends[0],
                    dst=ends[1],
                    memory="pinned",
                    direction="one_way",
                    size_bytes=512 * MIB,
                    gb_per_s=value or 0.0,
                    repeats=3,
                    verified=True,
                )
            )

    host("memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", "host_to_device")
    host("memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)", "device_to_host")
    together = measured_text.split("Running all_to_host_memcpy_ce.", 1)[1]
    shares = nvbandwidth_rows(together, "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)")[0]
    bandwidth.append(
        Bandwidth(
            path="device_to_host",
            src="all",
            dst="host",
            memory="pinned",
            direction="one_way",
            size_bytes=512 * MIB,
            gb_per_s=sum(share or 0.0 for share in shares),
            per_device={f"gpu:{i}": share or 0.0 for i, share in enumerate(shares)},
            repeats=3,
            verified=True,
        )
    )
    for title, direction in (
        ("memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)", "one_way"),
        ("memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)", "both_ways"),
    ):
        for row, cells in enumerate(nvbandwidth_rows(measured_text, title)):
            for column, value in enumerate(cells):
                if value is not None:
                    bandwidth.append(
                        Bandwidth(
                            path="peer",
                            src=f"gpu:{column}",
                            dst=f"gpu:{row}",
                            memory="device",
                            direction="one_way" if direction == "one_way" else "both_ways",
                            peer_access=True,
                            size_bytes=512 * MIB,
                            gb_per_s=value,
                            ceiling_gb_per_s=478.1,
                            ceiling_source="18 NVLink lanes of 26.6 GB/s",
                            repeats=3,
                            verified=True,
                        )
                    )
    links = tuple(Link(a=a, b=b, kind="NV18", lanes=18, peer_access=True) for a in range(4) for b in range(a + 1, 4))
    return Facts(
        host=Host(
            name="h200x4",
            cpu="Intel(R) Xeon(R) Processor",
            sockets=1,
            cores=64,
            threads=64,
            usable_cpus=64,
            numa=(NumaNode(index=0, cpus="0-63"),),
            driver="580.159.04",
            cuda_driver="13.0",
            hypervisor="unnamed (the CPU reports a hypervisor)",
            reasons={
                "acs": "no PCI bridge is visible above a GPU",
                "topology": "this is a virtual machine: distances over PCI are those of the guest's view, not of the "
                "hardware",
            },
        ),
        gpus=tuple(gpus),
        links=links,
        bandwidth=tuple(bandwidth),
    )


def says_nothing(key: str, value: Any) -> bool:
    """Return True for a default: null, an empty text or container, or 0 or false for the keys in DEFAULT_FALSE."""
    return value is None or value in ("", [], {}) or (key in DEFAULT_FALSE and not value)


def compact(value: Any) -> Any:
    """Remove null and empty values from a tree."""
    if isinstance(value, dict):
        return {key: compact(inner) for key, inner in value.items() if not says_nothing(key, inner)}
    if isinstance(value, list):
        return [compact(item) for item in value]
    return value


def write(facts: Facts) -> None:
    facts = msgspec.structs.replace(facts, islands=find_islands([gpu.index for gpu in facts.gpus], facts.links))
    tree = compact(msgspec.to_builtins(facts))
    # Write one record per line, so that a changed figure changes one line.
    text = msgspec.json.encode(tree).decode().replace("},{", "},\n{")
    (HERE / f"{facts.host.name}.json").write_text(text + "\n")


def main(data: Path, h200_directory: Path) -> None:
    azure = "Hyper-V or Azure"
    write(
        Facts(
            host=Host(name="7gforce", cpu="Intel Xeon E5-2630 v4", sockets=1, cores=10, threads=20, driver="384.69"),
            gpus=gforce_gpus(),
            **measured(data, "7gforce"),
        )
    )
    write(
        Facts(
            host=Host(
                name="7gforce-v2",
                sockets=2,
                threads=40,
                numa=(NumaNode(index=0, cpus="0-9,20-29"), NumaNode(index=1, cpus="10-19,30-39")),
            ),
            gpus=gforce_v2_gpus(),
            **measured(data, "7gforce-v2"),
        )
    )
    write(
        Facts(
            host=Host(name="az-2x-m60", cpu="Intel Xeon E5-2690 v3", cores=12, hypervisor=azure, driver="375.82"),
            gpus=like(2, "Tesla M60"),
            **measured(data, "az-2x-m60"),
        )
    )
    write(
        Facts(
            host=Host(name="az-4x-m60", hypervisor=azure, driver="384.90", cuda_driver="9.0"),
            gpus=like(4, "Tesla M60"),
            **measured(data, "az-4x-m60"),
        )
    )
    write(
        Facts(
            host=Host(name="dgx-1", cpu="Intel Xeon E5-2698 v4", sockets=2),
            gpus=like(8, "Tesla P100-SXM2-16GB"),
            **peer_only(data, "DGX-1 (tf_cnn constants.py)"),
        )
    )
    write(
        Facts(
            host=Host(name="gcp-8x-v100", hypervisor="Google Compute Engine"),
            gpus=like(8, "Tesla V100-SXM2-16GB"),
            **peer_only(data, "GCP 8x V100 (tf_cnn constants.py)"),
        )
    )
    write(
        Facts(
            host=Host(name="patrick-4x"),
            gpus=like(4, "GeForce RTX 2080 Ti"),
            links=tuple(Link(a=a, b=b, kind="unknown") for a in range(4) for b in range(a + 1, 4)),
            collectives=(
                # 174 all-reduces of one step take 516 ms, which is 0.27 GB/s of bus bandwidth by the nccl-tests
                # convention.
                Collective(
                    operation="all_reduce",
                    strategy="nccl",
                    ranks=4,
                    bytes=92_880_000,
                    time_us=516_000.0,
                    algbw_gb_per_s=0.18,
                    busbw_gb_per_s=0.27,
                ),
            ),
        )
    )
    write(
        Facts(
            host=Host(name="staging-area-box"),
            gpus=(Gpu(index=0, name="GeForce GTX 980 Ti", pcie=PcieLink(width=16)),),
            bandwidth=(
                Bandwidth(
                    path="host_to_device",
                    src="host",
                    dst="gpu:0",
                    memory="pinned",
                    direction="one_way",
                    size_bytes=32 * MIB,
                    gb_per_s=12.9,
                ),
            ),
        )
    )
    write(h200(h200_directory))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
