"""The report as a page: one file, nothing loaded, nothing of what it shows does anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.analysis.scaling.forecast import prospect
from gpudiag.analysis.scaling.speedup import with_speedups
from gpudiag.analysis.scaling.table import results_table
from gpudiag.analysis.scaling.waterfall import waterfall
from gpudiag.app.analyze import analyze_with_step
from gpudiag.errors import UsageError
from gpudiag.model.benchmarks.scaling import Remark, Scaling
from gpudiag.report.page.render import report, write_report
from gpudiag.report.page.svg import Drawing, ticks
from gpudiag.report.scaling import text as scaling_text
from gpudiag.report.text import results as results_text
from gpudiag.report.text import run as run_text
from tests.app.scale.points import measured, parts
from tests.machines import machine

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis
    from gpudiag.model.step_view import StepView

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m|`=1+1"
TRACES = Path(__file__).parents[1] / "traces"


class Page(HTMLParser):
    """What a page would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.loading: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "script":
            self.scripts.append(values.get("type") or "running")
        self.loading += [
            f"{tag} {name}" for name, value in attrs if name in {"src", "href"} and not (value or "").startswith("#")
        ]
        self.handlers += [name for name in values if name.startswith("on")]


def real() -> tuple[Analysis, StepView | None]:
    traces = sorted(path for path in TRACES.glob("*") if path.is_dir() and list(path.glob("*rank*.json.gz")))
    if not traces:
        pytest.skip("no traces of several ranks")
    return analyze_with_step([traces[0]])


def hostile_scaling() -> Scaling:
    points = with_speedups(
        [
            measured(n, ms, workload=HOSTILE, strategy=s)
            for s in ("nccl", HOSTILE)
            for n, ms in ((1, 30), (2, 33), (4, 40))
        ]
    )
    fall = waterfall(points[2], points[0], parts(compute=31, waiting=9), parts(compute=30))
    found = prospect(points[:3], None, None)
    assert found is not None
    return Scaling(
        workload=HOSTILE,
        points=tuple(points),
        waterfalls=(fall,),
        prospects=(found,),
        remarks=(Remark(code=HOSTILE, message=HOSTILE),),
    )


def test_a_real_run_is_one_quiet_file() -> None:
    analysis, step = real()
    assert step is not None
    text = report(analysis=analysis, step=step, facts=machine("h200x4"))
    page = Page(text)
    assert page.loading == []
    assert page.handlers == []
    assert page.scripts == ["application/json", "application/json", "running"]
    assert len(text) < 8_000_000
    for heading in ("Summary", "Where a step", "One step", "Machine", "How far to trust this"):
        assert heading in text


def test_names_are_text_wherever_they_stand() -> None:
    analysis, step = real()
    assert step is not None
    finding = msgspec.structs.replace(analysis.findings[0], title=HOSTILE, cause=HOSTILE, advice=(HOSTILE,))
    kernel = msgspec.structs.replace(analysis.kernels[0], name=HOSTILE)
    bad = msgspec.structs.replace(analysis, findings=(finding,), kernels=(kernel,))
    view = msgspec.structs.replace(step, names=tuple(HOSTILE for _ in step.names))
    text = report(analysis=bad, step=view, scaling=hostile_scaling())
    page = Page(text)
    assert page.scripts == ["application/json", "application/json", "running"]
    assert page.handlers == []
    assert "<img" not in text
    assert "\x1b" not in text


def test_only_the_pages_own_script_may_run() -> None:
    analysis, step = real()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', report(analysis=analysis, step=step))
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]+'", policy[1].replace("&#43;", "+"))


def test_markdown_and_csv_are_text_too() -> None:
    result = hostile_scaling()
    markdown = scaling_text.to_markdown(result)
    assert "<script" not in markdown.replace("\\<", "")
    assert "\x1b" not in markdown
    rows = scaling_text.to_csv(result.points).splitlines()
    assert len(rows) == 1 + len(result.points)
    formula = measured(1, 30.0, workload="=HYPERLINK(1)")
    assert "'=HYPERLINK" in scaling_text.to_csv([formula])
    table = results_table([("=1", formula)])
    assert results_text.to_csv_rows(table).splitlines()[1].startswith("'=1,")
    analysis, _ = real()
    assert "## Findings" in run_text.to_markdown(analysis)
    assert len(run_text.to_csv(analysis).splitlines()) == 1 + len(analysis.devices)


def test_nothing_to_show_is_an_error() -> None:
    with pytest.raises(UsageError):
        report()


def test_ticks_are_round_and_reach_the_top() -> None:
    for high in (0.003, 0.97, 7, 93, 12345.6):
        marks = ticks(high)
        assert marks[-1] >= high * 0.999
        assert 3 <= len(marks) <= 12


def test_drawings_escape_their_words() -> None:
    drawing = Drawing(100, 100, HOSTILE)
    drawing.text((0, 0), HOSTILE)
    drawing.box(0, 0, float("nan"), 10, "s0", HOSTILE)
    assert "<script" not in drawing.markup()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to draw with")
@pytest.mark.processes
def test_a_browser_draws_it(tmp_path: Path) -> None:
    """In a real browser, with its script allowed by the page's own policy, and within two seconds of page time."""
    analysis, step = real()
    path = tmp_path / "report.html"
    write_report(path, analysis=analysis, step=step)
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
    ]
    began = time.monotonic()
    done = subprocess.run(
        ["chromium", *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    drawn = re.search(r'data-drawn="(\d+)"', done.stdout)
    assert drawn is not None, f"after {time.monotonic() - began:.0f} s: {done.stderr[-500:]}"
