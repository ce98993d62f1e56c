"""Figures of the machine's links, measured before a run that exchanges gradients over them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.app.profile.prepare import Prepared, usable_gpus
from gpudiag.machine.measure import failed_probes, probe_machine
from gpudiag.machine.probes.cache import cached_measurements, keep_measurements
from gpudiag.machine.probes.plan import installed
from gpudiag.machine.probes.runner import ProbeStep
from gpudiag.model.facts import Facts, nccl_transport


def measure_links(prepared: Prepared, on_progress: Callable[[ProbeStep], None] | None = None) -> Prepared:
    """Put figures of the machine's links beside the inventory, where several GPUs will exchange gradients over them.

    Args:
        prepared: what is about to run; its options say whether to measure, which takes about 5 s.
        on_progress: called from several threads with what is measured now.
    """
    facts, job = prepared.facts, prepared.plan.job
    several = job.device == "cuda" and prepared.plan.ranks > 1 and usable_gpus(facts) > 1
    measured: Facts | None = None
    if several and job.probe is not False and installed("cuda.bindings"):
        if job.probe is None:
            measured = cached_measurements(facts, nccl_transport(p2p=job.p2p))
        if measured is None:
            measured = probe_machine(facts, quick=True, p2p=job.p2p, on_progress=on_progress)
            if not failed_probes(measured):
                keep_measurements(measured)
    facts = measured or facts
    return msgspec.structs.replace(prepared, facts=msgspec.structs.replace(facts, findings=examine_facts(facts)))
