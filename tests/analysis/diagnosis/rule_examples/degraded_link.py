"""Provide example machines on which rule `degraded-link` fires or is silent."""

from __future__ import annotations

from gpudiag.model.facts import Facts, Link, NvLink, PcieLink
from tests.analysis.diagnosis.rule_examples.machines import gpu, host_copies, loaded, machine, peer_copies

FIRES: tuple[tuple[str, Facts], ...] = (
    (
        "trained to x8 in a x16 slot, under load",
        machine(gpu(0, pcie=loaded(4, 8, 4, 16)), bandwidth=(host_copies(0, 13.1),)),
    ),
    (
        "a third of the ceiling",
        machine(gpu(0), bandwidth=(host_copies(0, 18.0, ceiling_gb_per_s=57.0, ceiling_source="PCIe 5 x16"),)),
    ),
    (
        "half of the other GPUs' rate",
        machine(
            *(gpu(i) for i in range(3)),
            bandwidth=(host_copies(0, 25.0), host_copies(1, 12.4), host_copies(2, 25.1)),
        ),
    ),
    ("a one-lane riser", machine(gpu(0), bandwidth=(host_copies(0, 0.77),))),
    (
        "six of eighteen NVLink lanes down",
        machine(
            gpu(0, nvlinks=tuple(NvLink(lane=i, active=True) for i in range(18))),
            gpu(1, nvlinks=tuple(NvLink(lane=i, active=i < 12) for i in range(18))),
        ),
    ),
    (
        "one NVLink pair at half the rate of the others",
        machine(
            *(gpu(i) for i in range(3)),
            links=(
                Link(a=0, b=1, kind="NV6", lanes=6),
                Link(a=0, b=2, kind="NV6", lanes=6),
                Link(a=1, b=2, kind="NV6", lanes=6),
            ),
            bandwidth=(
                peer_copies(0, 1, 132.0, peer_access=True),
                peer_copies(0, 2, 132.0, peer_access=True),
                peer_copies(1, 2, 60.0, peer_access=True),
            ),
        ),
    ),
)

SILENT: tuple[tuple[str, Facts], ...] = (
    ("idle, trained down to generation 1", machine(gpu(0))),
    (
        "x8 by design",
        machine(
            gpu(0, pcie=loaded(4, 8, 4, 8)),
            bandwidth=(host_copies(0, 13.1, ceiling_gb_per_s=14.6, ceiling_source="PCIe 4 x8"),),
        ),
    ),
    ("a virtual machine that reports no maximum", machine(gpu(0, pcie=PcieLink()), bandwidth=(host_copies(0, 6.1),))),
    (
        "registers that show x8 while the bandwidth proves x16",
        machine(gpu(0, pcie=loaded(5, 8, 5, 16)), bandwidth=(host_copies(0, 55.4),)),
    ),
    (
        "two models, each with its own link",
        machine(gpu(0), gpu(1, "Example 100"), bandwidth=(host_copies(0, 25.0), host_copies(1, 12.0))),
    ),
    (
        "a card without an NVLink bridge beside bridged ones",
        machine(
            gpu(0, nvlinks=(NvLink(lane=0, active=True),)),
            gpu(1, nvlinks=(NvLink(lane=0, active=True),)),
            gpu(2, nvlinks=(NvLink(lane=0, active=False),)),
        ),
    ),
)
