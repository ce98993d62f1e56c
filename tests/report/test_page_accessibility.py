"""Test the HTML pages with axe in a browser: they must be usable with keys, screen readers and any color vision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpudiag.app.analyze import analyze_with_step
from gpudiag.report.page.render import bandwidth_page, report, write_report
from tests.accessibility import needs_browser, violations
from tests.machines import machine
from tests.report import test_facts_bandwidth
from tests.report.parallel_job import pipeline_job
from tests.report.test_page import TRACES, hostile_scaling, with_source_lines

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [needs_browser, pytest.mark.processes]


def test_pages_have_no_violations(tmp_path: Path) -> None:
    whole, step = with_source_lines()
    write_report(tmp_path / "whole.html", analysis=whole, step=step, scaling=hostile_scaling(), facts=machine("h200x4"))
    short, short_step = analyze_with_step([TRACES / "gloo_dataloader"])
    write_report(tmp_path / "cpu.html", analysis=short, step=short_step)
    (tmp_path / "pipeline.html").write_text(report(analysis=pipeline_job()), encoding="utf-8")
    (tmp_path / "bandwidth.html").write_text(bandwidth_page(test_facts_bandwidth.measured()), encoding="utf-8")
    pages = sorted(tmp_path.glob("*.html"))
    assert len(pages) == 4
    found = violations(pages)
    assert not found, "\n".join(found)


def test_violations_are_found(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        '<html lang="en"><title>T</title><main><h1>T</h1><img src="data:,"></main></html>', encoding="utf-8"
    )
    found = violations([path])
    assert [line.partition(":")[0] for line in found] == ["bad.html, light, 1280 pixels", "bad.html, dark, 390 pixels"]
    assert all("image-alt at img" in line for line in found)
