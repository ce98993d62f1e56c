"""Test what-if scenarios from probe results: collectives over other transports, and pinned copies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.simulation.counterfactuals import transports, with_transport
from gpudiag.model.facts import Collective
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.jobs import Job, all_reduce, host_copy, kernels, update
from tests.probed_machine import four_h200

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.case import Case
    from gpudiag.model.analysis import Finding
    from gpudiag.model.facts import Facts


def curve(strategy: str, *points: tuple[int, float]) -> tuple[Collective, ...]:
    """Return all-reduces of 4 ranks that were measured at `points` (MB, µs)."""
    return tuple(
        Collective(
            operation="all_reduce",
            strategy=strategy,
            ranks=4,
            bytes=megabytes * 10**6,
            time_us=time_us,
            algbw_gb_per_s=megabytes * 1e3 / time_us,
            busbw_gb_per_s=megabytes * 1e3 / time_us * 1.5,
        )
        for megabytes, time_us in points
    )


def probed(*collectives: Collective) -> Facts:
    return msgspec.structs.replace(four_h200(), collectives=collectives)


def exposed(milliseconds: float, megabytes: float, facts: Facts) -> Case:
    """Make a case of 10 ms of compute, an all-reduce of `milliseconds` that nothing hides, and an update."""
    job = Job(ranks=4, step=(kernels(10), all_reduce(milliseconds, megabytes=megabytes), update(1)))
    return replace(case_of(job.traces()), facts=facts)


def finding(case: Case, code: str) -> Finding:
    return next(found for found in diagnose(case).findings if found.code == code)


def test_savings_are_those_of_the_other_transport() -> None:
    facts = probed(
        *curve("nccl", (50, 1000.0), (150, 3000.0)), *curve("nccl-no-p2p", (100, 10_000.0)), *curve("gloo", (1, 50.0))
    )
    case = exposed(10, 100, facts)
    assert transports(facts) == ("nccl", "nccl-no-p2p", "gloo")
    result = finding(case, "communication-bound")
    # Over NCCL the all-reduce takes 2 ms (interpolated between 50 and 150 MB), 8 ms less than recorded. Without peer
    # access the all-reduce takes as long as recorded. gloo was not measured at this size.
    assert result.evidence["savings_ms_at_probed"] == {"nccl": pytest.approx(8.0, abs=0.05)}
    assert result.recoverable_ms_per_step == pytest.approx(10.0, abs=0.05)


def test_transport_is_advised_only_if_faster() -> None:
    own = finding(exposed(10, 100, probed(*curve("nccl", (100, 6000.0)))), "communication-bound")
    assert own.evidence["savings_ms_at_probed"] == {"nccl": pytest.approx(4.0, abs=0.05)}
    assert not any("savings_ms_at_probed" in line for line in own.advice)
    other = finding(exposed(10, 100, probed(*curve("nccl-tree", (100, 6000.0)))), "communication-bound")
    assert any("savings_ms_at_probed" in line for line in other.advice)


def test_a_slower_transport_lengthens_the_step() -> None:
    facts = probed(*curve("nccl-no-p2p", (100, 25_000.0)))
    case = exposed(10, 100, facts)
    what_if = case.what_if
    assert what_if is not None
    edited = with_transport(what_if, what_if.corrected, facts, "nccl-no-p2p")
    assert edited is not None
    assert what_if.step_ms(edited) == pytest.approx(what_if.corrected_ms + 15, abs=0.1)
    assert with_transport(what_if, what_if.corrected, facts, "nccl-ring") is None


def test_copies_take_the_probed_pinned_rate() -> None:
    job = Job(ranks=1, step=(host_copy(5, megabytes=50, pinned=False), kernels(10)))
    copy_finding = finding(replace(case_of(job.traces()), facts=four_h200()), "slow-copy")
    rate = copy_finding.evidence["probe_pinned_gb_per_s"]
    assert copy_finding.evidence["savings_ms_pinned"] == pytest.approx(5 - 50 / rate, abs=0.1)
    assert copy_finding.recoverable_ms_per_step == pytest.approx(5, abs=0.1)
