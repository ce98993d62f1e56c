"""Test the terminal report of recorded machines, at several widths."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.model.facts import Facts, Gpu, GpuProcess, Host, Link, Nic, NumaNode
from gpudiag.report.facts.topology import render_topology
from tests.machines import NAMES, machine
from tests.report.consoles import Colour, console

if TYPE_CHECKING:
    from collections.abc import Callable


def drawn(facts: Facts, width: int, *, colour: Colour | None = None, encoding: str = "utf-8") -> str:
    target = console(width, colour=colour, encoding=encoding)
    render_topology(msgspec.structs.replace(facts, findings=examine_facts(facts)), target)
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def no_gpu() -> Facts:
    """Return the facts of a laptop without a GPU, in a container."""
    reason = "none on the PCI bus; the NVIDIA driver library (libnvidia-ml.so.1) is not here: no driver is installed"
    return Facts(
        host=Host(
            name="laptop", os="Example Linux 1", kernel="6.8.0", cpu="Example CPU", sockets=1, cores=8, threads=16,
            usable_cpus=4, memory_bytes=32 << 30, numa=(NumaNode(index=0, cpus="0-15", memory_bytes=32 << 30),),
            memlock_bytes=8 << 20, shm_bytes=16 << 30, shm_free_bytes=15 << 30, container="Docker",
            environment={"NCCL_DEBUG": "INFO"}, nics=(Nic(name="eth0", kind="ethernet", speed_gb_per_s=0.125),),
            reasons={"gpus": reason, "driver": reason, "iommu": "the kernel does not show /sys/class/iommu"},
        )
    )  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", ["h200x4", "7gforce-v2"])
def test_reports_of_recorded_machines_equal_their_goldens(
    name: str, width: int, golden: Callable[[str, str], None]
) -> None:
    golden(f"topology-{name}-{width}.txt", drawn(machine(name), width))


@pytest.mark.parametrize("width", [40, 80])
def test_report_without_a_gpu_equals_its_golden(width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"topology-no-gpu-{width}.txt", drawn(no_gpu(), width))


@pytest.mark.parametrize("width", [40, 57, 72, 100, 160])
@pytest.mark.parametrize("name", NAMES)
def test_every_machine_fits_every_width(name: str, width: int) -> None:
    text = drawn(machine(name), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert not any(line != line.rstrip() for line in text.splitlines())
    for gpu in machine(name).gpus:
        assert gpu.name in " ".join(text.split())


def test_color_changes_no_word() -> None:
    plain = drawn(machine("7gforce-v2"), 100)
    coloured = drawn(machine("7gforce-v2"), 100, colour="standard")
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    import re

    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_text_from_files_has_no_effect() -> None:
    evil = "[bold]x[/bold]\x1b[31m\u202e"
    facts = Facts(
        host=Host(name=evil, cpu=evil, environment={f"NCCL_{evil}": evil}, reasons={evil: evil},
                  nics=(Nic(name=evil, kind="other", distance={evil: evil, "0": evil}),)),
        gpus=(
            Gpu(index=0, name=evil, uuid=evil, cpu_affinity=evil, throttle_reasons=(evil,), compute_mode=evil,
                processes=(GpuProcess(pid=1, name=evil),), reasons={evil: evil}),
            Gpu(index=1, name="x"),
        ),
        links=(Link(a=0, b=1, kind=evil, peer_access=False, reason=evil),),
        islands=((0,), (1,)),
    )  # fmt: skip
    for width in (40, 100):
        text = drawn(facts, width)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "[bold]" in text


def test_terminal_without_unicode_gets_ascii_boxes() -> None:
    text = drawn(machine("dgx-1"), 100, encoding="ascii")
    assert "+-- GPU 0" in text or "`-- GPU 3" in text


def test_sixteen_gpus_in_forty_columns_become_a_list() -> None:
    gpus = tuple(Gpu(index=i, name="Example") for i in range(16))
    links = tuple(
        Link(a=a, b=b, kind="NV18", lanes=18, peer_access=a > 0, reason=None if a else "not supported (NS)")
        for a in range(16)
        for b in range(a + 1, 16)
    )
    text = drawn(Facts(host=Host(name="x"), gpus=gpus, links=links, islands=((0,), tuple(range(1, 16)))), 40)
    assert "NV18: 0-1, 0-2" in text
    assert "no: 0-1" in text
