"""Test the page's section about jobs that divide more than their batches (pipelines, tensor parallelism)."""

from __future__ import annotations

import html
import math
import re
import shutil
from typing import TYPE_CHECKING
from xml.etree.ElementTree import fromstring

import pytest
from msgspec.structs import replace

from gpudiag.app.analyze import analyze_with_step
from gpudiag.report.page.parallelism import draw_passes, parallel_part
from gpudiag.report.page.render import report, write_report
from gpudiag.report.parallel_rows import passes_by_stage
from tests import builders
from tests.report.parallel_job import pipeline_job, tensor_job
from tests.report.test_page import HOSTILE, Page, opened
from tests.report.test_terminal_parallelism import hostile_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def section_of(page: str) -> str:
    return page.partition('<h2 id="parallelism">')[2].partition("<h2")[0]


def test_section_of_a_pipeline_equals_its_golden(golden: Callable[[str, str], None]) -> None:
    golden("parallel-pipeline.html", section_of(report(analysis=pipeline_job())))


def test_drawing_has_a_box_per_pass_with_its_microbatch() -> None:
    job = pipeline_job(stages=2, microbatches=4)
    assert job.parallelism is not None
    assert job.parallelism.pipeline is not None
    rows, length_ms = passes_by_stage(job.parallelism.pipeline)
    drawing = fromstring(draw_passes(rows, length_ms))  # noqa: S314  # drawn by gpudiag
    boxes = drawing.findall("rect")
    assert len(boxes) == 2 * 2 * 4
    titles = [box.findtext("title") for box in boxes]
    assert titles[0] == "stage 0 (rank 0), forward of microbatch 0: 10.0 ms, from 0.0 to 10.0 ms"
    assert titles[-1] == "stage 1 (rank 2), backward of microbatch 3: 20.0 ms, from 110.0 to 130.0 ms"
    assert [text.text for text in drawing.findall("text") if text.get("class") == "pass"] == list("0102132300112233")
    starts = [float(box.get("x", "nan")) for box in boxes[:8]]
    assert starts == sorted(starts)
    assert {box.get("style") for box in boxes} == {"fill:var(--launch)", "fill:var(--compute)"}


def test_passes_and_ranks_are_also_tables() -> None:
    section = html.unescape(section_of(report(analysis=pipeline_job(stages=2, microbatches=4))))
    assert section.count("<details>") == 2
    assert section.count("<td>forward</td>") == section.count("<td>backward</td>") == 8
    assert 'tabindex="0"' in section  # with focus, keys scroll the drawing


def test_section_without_pipeline_has_traffic_only() -> None:
    section = section_of(report(analysis=tensor_job()))
    assert "Communication by role" in section
    assert "<svg" not in section
    assert "Bubble" not in section


def test_data_parallel_job_has_no_section() -> None:
    page = report(analysis=builders.late_loader())
    assert 'id="parallelism"' not in page
    assert 'href="#parallelism"' not in page


def test_text_of_files_is_escaped_and_times_that_are_not_real_are_left_out() -> None:
    job = hostile_job()
    assert job.parallelism is not None
    traffic = replace(job.parallelism.traffic[0], operations={HOSTILE: 1.0})
    page = report(analysis=replace(job, parallelism=replace(job.parallelism, traffic=(traffic,))))
    assert Page(page).loading == []
    assert Page(page).handlers == []
    assert Page(page).scripts == []
    assert "<img" not in page
    assert "\x1b" not in page
    assert len(page) < 3_000_000


def test_many_passes_make_the_drawing_wider() -> None:
    job = pipeline_job(stages=2, microbatches=128)
    assert job.parallelism is not None
    drawing = parallel_part(job, job.parallelism)["pipeline"]["drawing"]
    width = float(re.findall(r'viewBox="0 0 ([\d.]+) ', drawing)[0])
    assert 4000 < width < 5000
    assert math.isclose(width * 0.8, float(re.findall(r"min-width:([\d.]+)px", drawing)[0]), rel_tol=0.01)


@pytest.mark.long
def test_page_of_a_recorded_pipeline_draws_every_pass(whole_recording: Callable[[str], Path]) -> None:
    analysis, step = analyze_with_step([whole_recording("parallel/pp2dp2_1f1b")])
    page = report(analysis=analysis, step=step)
    section = html.unescape(section_of(page))
    assert "stage 1 (rank 2), backward of microbatch 3: " in section
    assert section.count("<rect") == 2 * 2 * 4
    assert Page(page).loading == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to draw with")
@pytest.mark.processes
def test_browser_opens_the_page(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, analysis=pipeline_job())
    page = opened(tmp_path, path.as_uri())
    assert page.count("<rect") == 4 * 2 * 8
