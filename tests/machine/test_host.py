"""Test the inventory of a host with recorded trees of /proc and /sys."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.inventory.host.gather import gather_host
from gpudiag.machine.inventory.host.isolation import acs_control
from gpudiag.machine.inventory.host.pci import distance, normal_pci_id
from gpudiag.model.facts import Gpu

SWITCH = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
DEVICES = {
    "0000:3d:00.0": f"{SWITCH}/0000:3c:04.0",  # GPU 0, below the same switch as a network card
    "0000:3e:00.0": f"{SWITCH}/0000:3c:08.0",
    "0000:41:00.0": "pci0000:3a/0000:3a:02.0",  # GPU 1, below a different port of the same host bridge
    "0000:b1:00.0": "pci0000:b0/0000:b0:00.0",  # GPU 2, on the other socket
}
GPUS = tuple(
    Gpu(index=i, name="Example", pci_id=pci, numa_node=node)
    for i, (pci, node) in enumerate((("0000:3d:00.0", 0), ("0000:41:00.0", 0), ("0000:b1:00.0", 1)))
)


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def device(root: Path, address: str, above: str, numa: int = 0) -> None:
    """Add a PCI device below the bridges `above` to the tree of /sys."""
    directory = root / "sys/devices" / above / address
    write(root, {f"sys/devices/{above}/{address}/numa_node": f"{numa}\n"})
    for part in (*Path(above).parts[1:], address):
        link = root / "sys/bus/pci/devices" / part
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            target = directory if part == address else next(p for p in directory.parents if p.name == part)
            link.symlink_to(target)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write files of /proc, /sys and /etc of a host with two sockets and three GPUs; return their root."""
    for address, above in DEVICES.items():
        device(tmp_path, address, above, 1 if address.startswith("0000:b1") else 0)
    flags = "flags\t\t: fpu hypervisor sse\n"
    cpu = "".join(f"processor\t: {i}\nmodel name\t: Example  CPU @ 2.1GHz\n{flags}\n" for i in range(8))
    files: dict[str, str | bytes] = {
        "proc/cpuinfo": cpu,
        "proc/meminfo": "MemTotal:       1048576 kB\nMemFree: 5 kB\n",
        "proc/cmdline": "quiet intel_iommu=on iommu=pt password=secret\n",
        "proc/sys/kernel/hostname": "node7\n",
        "proc/sys/kernel/osrelease": "6.8.0\n",
        "proc/self/limits": "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  unlimited  unlimited  bytes\n",
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-5\n",
        "proc/self/cgroup": "0::/kubepods/pod1\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
        "sys/fs/cgroup/kubepods/pod1/cpu.max": "350000 100000\n",
        "etc/os-release": 'NAME="x"\nPRETTY_NAME="Example Linux 1"\n',
        "sys/devices/system/cpu/online": "0-7\n",
        "sys/devices/system/node/node0/cpulist": "0-3\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       524288 kB\n",
        "sys/devices/system/node/node1/cpulist": "4-7\n",
        "sys/class/iommu/dmar0": "",
        "sys/kernel/iommu_groups/0/type": "identity\n",
        "sys/class/dmi/id/sys_vendor": "QEMU\n",
        "sys/class/net/lo/type": "772\n",
        "sys/class/net/eth0/type": "1\n",
        "sys/class/net/eth0/speed": "25000\n",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "dev/shm/x": "",
    }
    for i in range(8):
        files[f"sys/devices/system/cpu/cpu{i}/topology/physical_package_id"] = f"{i // 4}\n"
        files[f"sys/devices/system/cpu/cpu{i}/topology/core_id"] = f"{i % 4 // 2}\n"
    write(tmp_path, files)
    (tmp_path / "sys/class/net/eth0/device").symlink_to(tmp_path / "sys/bus/pci/devices/0000:b1:00.0")
    (tmp_path / "sys/class/infiniband/mlx5_0/device").symlink_to(tmp_path / "sys/bus/pci/devices/0000:3e:00.0")
    return tmp_path


def test_every_field_of_a_host_is_read(root: Path) -> None:
    environment = {"NCCL_DEBUG": "INFO", "HOME": "/root", "AWS_SECRET_ACCESS_KEY": "x", "OMP_NUM_THREADS": "4"}
    host = gather_host(root, environment, GPUS)
    assert (host.name, host.os, host.kernel, host.cpu) == ("node7", "Example Linux 1", "6.8.0", "Example CPU @ 2.1GHz")
    assert (host.sockets, host.cores, host.threads, host.usable_cpus) == (2, 4, 8, 4)
    assert [(n.index, n.cpus, n.memory_bytes) for n in host.numa] == [(0, "0-3", 1 << 29), (1, "4-7", None)]
    assert host.memory_bytes == 1 << 30
    assert host.memlock_bytes == -1
    assert host.shm_bytes is not None
    assert host.iommu == "on, passthrough (kernel options: intel_iommu=on iommu=pt)"
    assert (host.container, host.hypervisor) == ("Kubernetes", "QEMU")
    assert host.environment == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}


def test_network_devices_and_their_distances(root: Path) -> None:
    ethernet, infiniband = gather_host(root, {}, GPUS).nics
    assert (ethernet.name, ethernet.kind, ethernet.speed_gb_per_s, ethernet.numa_node) == ("eth0", "ethernet", 3.125, 1)
    assert (infiniband.name, infiniband.kind, infiniband.speed_gb_per_s) == ("mlx5_0", "infiniband", 50.0)
    assert infiniband.pci_id == "0000:3e:00.0"
    assert infiniband.distance == {"0": "PIX", "1": "PHB", "2": "SYS"}


def test_acs_is_read_from_bridges_if_permitted(root: Path) -> None:
    host = gather_host(root, {}, GPUS)
    assert host.acs is None
    assert host.reasons["acs"] == "reading the configuration space of bridges takes root"
    bridge = root / "sys/devices" / SWITCH / "0000:3c:04.0"
    (bridge / "config").write_bytes(config(control=0x1D))
    assert gather_host(root, {}, GPUS).acs == "redirects peer traffic through the CPU at 0000:3c:04.0"
    (bridge / "config").write_bytes(config(control=0x01))
    assert gather_host(root, {}, GPUS).acs == "no redirection at 1 of 5 bridges above GPUs"


def config(control: int) -> bytes:
    """Return a PCI configuration space with two extended capabilities, of which the second is ACS."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x1F, control)
    return bytes(space)


def test_looping_or_empty_pci_configuration_space_has_no_acs() -> None:
    assert acs_control(config(0x1D)) == 0x1D
    assert acs_control(bytes(4096)) is None
    assert acs_control(bytes(64)) is None
    looping = bytearray(4096)
    struct.pack_into("<I", looping, 0x100, 0x0001 | 0x100 << 20)
    assert acs_control(bytes(looping)) is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/class/iommu/dmar0": "", "sys/kernel/iommu_groups/0/type": "DMA-FQ"}, "on, translating"),
        ({"sys/class/iommu/dmar0": "", "sys/kernel/iommu_groups/0/type": "DMA",
          "sys/kernel/iommu_groups/1/type": "identity"}, "on, translating some devices"),
        ({"sys/class/iommu/dmar0": ""}, "on, mode unknown"),
        ({}, None),
    ],
)  # fmt: skip
def test_iommu_is_read_from_the_host(tmp_path: Path, files: dict[str, str | bytes], expected: str | None) -> None:
    write(tmp_path, files)
    host = gather_host(tmp_path, {})
    assert host.iommu == expected
    assert ("iommu" in host.reasons) == (expected is None)


@pytest.mark.parametrize(
    ("files", "container", "hypervisor"),
    [
        ({".dockerenv": "", "proc/cpuinfo": "flags : fpu\n"}, "Docker", None),
        ({"run/.containerenv": ""}, "Podman", None),
        ({"proc/1/cgroup": "0::/system.slice/docker-1.scope", ".dockerenv": ""}, "Docker", None),
        # The vendor is Amazon, but the CPU reports no hypervisor: bare metal.
        ({"proc/cpuinfo": "flags : fpu\n", "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, None, None),
        ({"proc/cpuinfo": "flags : hypervisor\n", "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, None, "Amazon EC2"),
        ({"proc/cpuinfo": "flags : hypervisor\n", "sys/hypervisor/type": "xen"}, None, "Xen"),
        ({"proc/cpuinfo": "Features : fp\n", "sys/class/dmi/id/product_name": "Google Compute Engine"}, None,
         "Google Compute Engine"),
    ],
)  # fmt: skip
def test_containers_and_virtual_machines_are_recognized(
    tmp_path: Path, files: dict[str, str | bytes], container: str | None, hypervisor: str | None
) -> None:
    write(tmp_path, files)
    host = gather_host(tmp_path, {})
    assert (host.container, host.hypervisor) == (container, hypervisor)


def test_unreadable_fields_have_a_reason(tmp_path: Path) -> None:
    host = gather_host(tmp_path, {})
    for field in ("cpu", "sockets", "numa", "memory_bytes", "memlock_bytes", "shm_bytes", "iommu", "acs"):
        assert host.reasons[field]


def test_cpu_quota_of_cgroup_v1_limits_usable_cpus(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/status": "Cpus_allowed_list:\t0-7\n",
            "proc/self/cgroup": "4:cpu,cpuacct:/job\n3:memory:/job\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
        },
    )
    assert gather_host(tmp_path, {}).usable_cpus == 2


def test_inventory_of_this_machine_is_valid() -> None:
    facts = gather_inventory()
    assert facts.host.name
    assert facts.host.kernel
    assert facts.host.usable_cpus
    assert facts.host.memory_bytes
    assert bool(facts.gpus) != ("gpus" in facts.host.reasons)


@pytest.mark.parametrize(
    ("a", "b", "nodes", "expected"),
    [
        (("pci0000:00", "r", "up", "d1", "x"), ("pci0000:00", "r", "up", "d2", "y"), (0, 0), "PIX"),
        (("pci0000:00", "r", "x"), ("pci0000:00", "r", "y"), (0, 0), "PIX"),
        (("pci0000:00", "r", "u", "d1", "u1", "e", "x"), ("pci0000:00", "r", "u", "d2", "u2", "e", "y"), (0, 0), "PXB"),
        (("pci0000:00", "x"), ("pci0000:00", "y"), (None, None), "PHB"),
        (("pci0000:00", "x"), ("pci0000:80", "y"), (0, 0), "NODE"),
        (("pci0000:00", "x"), ("pci0000:80", "y"), (0, 1), "SYS"),
        (("pci0000:00", "x"), ("pci0000:80", "y"), (0, None), "unknown"),
        (None, ("pci0000:80", "y"), (0, 0), "unknown"),
    ],
)
def test_distance_of_pci_devices_is_symmetric_and_follows_bridges(
    a: tuple[str, ...] | None, b: tuple[str, ...], nodes: tuple[int | None, int | None], expected: str
) -> None:
    assert distance(a, b, *nodes) == expected
    assert distance(b, a, *nodes[::-1]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("00010000:0a:1f.7", "10000:0a:1f.7"),
        ("../../etc", None),
        ("", None),
    ],
)
def test_pci_ids_are_normalized(text: str, expected: str | None) -> None:
    assert normal_pci_id(text) == expected
