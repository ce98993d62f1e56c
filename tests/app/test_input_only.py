"""Test a run with data loading only, on a machine with an idle GPU."""

from __future__ import annotations

import pytest

from gpudiag.app.analyze import analyze
from tests.cli_process import in_this_process
from tests.trace.documents import TRACES


def test_input_only_run_reports_its_throughput() -> None:
    analysis = analyze([TRACES / "input_only"])
    assert (analysis.findings, analysis.next, analysis.explained, analysis.validity) == ((), (), (), ())
    (timed,) = analysis.timed or ()
    # Two workers load the batches, so the training process only waits for the loader.
    assert timed.loader_ms == pytest.approx(timed.input_ms, rel=0.05)
    assert timed.loader_ms == pytest.approx(5.72, rel=0.01)


def test_input_only_report_shows_loading_without_findings() -> None:
    ran = in_this_process("analyze", str(TRACES / "input_only"))
    assert ran.returncode == 0, ran.stderr
    assert "Data loading alone delivers" in ran.stdout
    assert "DataLoader workers need 5.72 ms for one step's batch" in " ".join(ran.stdout.split())
    assert "How far to trust this" not in ran.stdout
