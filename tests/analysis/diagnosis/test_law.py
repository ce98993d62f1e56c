"""Check that each part of the step time that is large is explained by a finding, or reported as unexplained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpudiag.errors import UnreadableInputError
from tests.analysis.diagnosis.random_jobs.law import violations
from tests.conftest import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.analysis import Analysis

TRACES = Path(__file__).parents[2] / "traces"
PLAIN = sorted(path for path in TRACES.glob("*/") if list(path.glob("*.json*")))
ALONE = sorted((TRACES / "public").glob("*.gz"))
PACKED = sorted(WHOLE.rglob("*.npz"))


@pytest.mark.long
@pytest.mark.parametrize("path", [*PLAIN, *ALONE, *PACKED], ids=lambda path: path.stem)
def test_findings_explain_the_table_of_every_trace(path: Path, analysis_of: Callable[[Path], Analysis]) -> None:
    try:
        analysis = analysis_of(path)
    except UnreadableInputError as error:
        pytest.skip(str(error))
    assert violations(analysis) == []
    amounts = [finding.recoverable_ms_per_step or 0.0 for finding in analysis.findings]
    assert all(0 <= ms <= max(analysis.steps.mean_ms, analysis.steps.corrected_mean_ms or 0.0) for ms in amounts)
    # After a fix of `slow-compute`, compute still limits the step.
    others = [finding for finding in analysis.findings if finding.code != "slow-compute"]
    said = {finding.code for finding in others if (finding.recoverable_percent or 0.0) >= 5}
    assert not (said and "compute-bound" in {finding.code for finding in analysis.findings})
