"""Test the HTML page: it is one file that loads nothing and executes nothing of its content."""

from __future__ import annotations

import gzip
import html
import json
import re
import shutil
import subprocess
from base64 import b64decode
from html.parser import HTMLParser
from itertools import accumulate
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
from gpudiag.model.analysis import Modules
from gpudiag.model.benchmarks.scaling import Remark, Scaling
from gpudiag.model.sanitize import one_line
from gpudiag.model.source_lines import SourceLine
from gpudiag.model.step_view import StepTrack
from gpudiag.report.page.render import report, write_report
from gpudiag.report.page.steps import steps_part
from gpudiag.report.page.svg import Drawing, ticks
from gpudiag.report.scaling import text as scaling_text
from gpudiag.report.text import results as results_text
from gpudiag.report.text import run as run_text
from tests import builders
from tests.app.scale.points import measured, parts
from tests.machines import machine
from tests.report.complete_analysis import completed

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis
    from gpudiag.model.step_view import StepView

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m|`=1+1"
TRACES = Path(__file__).parents[1] / "traces"


class Page(HTMLParser):
    """Collect what a page would load or run."""

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
    """Return a scaling result in which every text is markup."""
    points = with_speedups(
        [
            measured(n, ms, workload=HOSTILE, strategy=s)
            for s in ("nccl", HOSTILE)
            for n, ms in ((1, 30), (2, 33), (4, 40))
        ]
    )
    fall = waterfall(points[2], points[0], parts(compute=31, waiting=9), parts(compute=30))
    forecast = prospect(points[:3], None, None)
    assert forecast is not None
    return Scaling(
        workload=HOSTILE,
        points=tuple(points),
        waterfalls=(fall,),
        prospects=(forecast,),
        remarks=(Remark(code=HOSTILE, message=HOSTILE),),
    )


def test_page_of_a_real_run_loads_nothing() -> None:
    analysis, step = real()
    assert step is not None
    text = report(analysis=analysis, step=step, facts=machine("h200x4"))
    page = Page(text)
    assert page.loading == []
    assert page.handlers == []
    assert page.scripts == ["application/json", "application/json", "application/gzip", "running"]
    assert len(text) < 8_000_000
    for heading in ("Summary", "Where a step", "One step", "Machine", "How far to trust this"):
        assert heading in text


def test_names_are_escaped_everywhere() -> None:
    analysis, step = late_rank()
    finding = msgspec.structs.replace(analysis.findings[0], title=HOSTILE, cause=HOSTILE, advice=(HOSTILE,))
    kernel = msgspec.structs.replace(analysis.kernels[0], name=HOSTILE)
    bad = msgspec.structs.replace(analysis, findings=(finding,), kernels=(kernel,))
    view = msgspec.structs.replace(step, names=tuple(HOSTILE for _ in step.names))
    text = report(analysis=bad, step=view, scaling=hostile_scaling())
    page = Page(text)
    assert page.scripts == ["application/json", "application/json", "application/gzip", "running"]
    assert page.handlers == []
    assert "<img" not in text
    assert "\x1b" not in text


def late_rank() -> tuple[Analysis, StepView]:
    analysis, step = analyze_with_step([TRACES / "slow_loader_rank2"])
    assert step is not None
    return completed(analysis), step


def test_verdict_with_advice_and_order_of_fixes_is_at_the_top() -> None:
    analysis, step = late_rank()
    text = html.unescape(report(analysis=analysis, step=step))
    top, _, below = text.partition("Where a step's time goes</h2>")
    for words in (
        "Rank 2's data loading delays all ranks",
        "24.6 ms waiting, 1.5 ms indirect",
        "Where: after AdamW.step, before aten::to (train.py:88)",
        "Alternative: host-stall (rank 2 · garbage collection), which saves about 12.0 ms",
        analysis.findings[0].advice[0],
        "straggler (rank 2 · input): step 31.3 ms, then limited by communication",
    ):
        assert words in top
    assert "launch 4.2 ms (6 %): explained by host-stall; 1.5 ms without known cause" in below
    assert 'data-code="host-stall" data-ranks="2"' in below


def test_modules_have_a_table() -> None:
    analysis = builders.many_ranks()
    text = report(analysis=analysis)
    assert '<a href="#modules">Modules</a>' in text
    assert '<td class="left">blocks.*.attention.qkv (12 \N{MULTIPLICATION SIGN} Linear)</td><td>9.00</td>' in text
    assert "4.20 ms outside of modules" in text
    assert "| head (Linear) | 5.40 | 1.80 | 3.60 | 1 |" in run_text.to_markdown(analysis)
    unknown = report(analysis=msgspec.structs.replace(analysis, modules=Modules(reason="it was <b>compiled</b>")))
    assert "not known: it was &lt;b&gt;compiled" in unknown
    assert "Modules" not in report(analysis=msgspec.structs.replace(analysis, modules=None))


def test_idle_time_assumed_to_be_data_loading_is_marked() -> None:
    analysis, _ = late_rank()
    text = report(analysis=analysis)
    assert re.search(r"rank 2, no events: assumed data loading: 3\d\.\d ms", text)
    assert "rank 1, no events" not in text


def test_compressed_steps_equal_the_originals_to_a_tenth_of_a_microsecond() -> None:
    _, step = late_rank()
    part = steps_part(step)  # times in units of 100 ns; each start is the difference to the previous start
    typical, (other,) = json.loads(part["step_json"]), json.loads(gzip.decompress(b64decode(part["others_packed"])))
    assert (typical["step"], other["step"]) == (5, 4)
    assert [choice for _, choice, _ in part["steps"]] == ["step 4: 67.3 ms", "step 5: 67.1 ms, typical"]
    for drawn, whole in ((typical, step), (other, step.others[0])):
        assert drawn["length"] == whole.length // 100
        for encoded, rank in zip(drawn["ranks"], whole.ranks, strict=True):
            for track, original in zip(encoded["tracks"], rank.tracks, strict=True):
                starts = [100 * at for at in accumulate(track["start"])]
                assert all(abs(at - start) <= 50 for at, start in zip(starts, original.start, strict=True))
                assert tuple(track["name"]) == original.name
                assert max(original.name, default=0) < len(typical["names"])


def test_markdown_has_the_same_verdict() -> None:
    text = run_text.to_markdown(late_rank()[0])
    assert text.index("Alternative: host-stall") < text.index("## Next") < text.index("1. straggler (rank 2 · input)")
    assert "- launch 4.2 ms (6 %): explained by host-stall; 1.5 ms without known cause" in text
    assert "24.6 ms waiting, 1.5 ms indirect" in text


def test_policy_allows_only_the_script_of_the_page() -> None:
    analysis, step = real()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', report(analysis=analysis, step=step))
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]+'", policy[1].replace("&#43;", "+"))


def test_markdown_and_csv_are_escaped() -> None:
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
    analysis, _ = late_rank()
    assert "## Findings" in run_text.to_markdown(analysis)
    assert len(run_text.to_csv(analysis).splitlines()) == 1 + len(analysis.devices)


def test_page_without_content_is_an_error() -> None:
    with pytest.raises(UsageError):
        report()


def test_ticks_are_round_and_reach_the_top() -> None:
    for high in (0.003, 0.97, 7, 93, 12345.6):
        marks = ticks(high)
        assert marks[-1] >= high * 0.999
        assert 3 <= len(marks) <= 12


def test_drawings_escape_text() -> None:
    drawing = Drawing(100, 100, HOSTILE)
    drawing.text((0, 0), HOSTILE)
    drawing.box(0, 0, float("nan"), 10, "s0", HOSTILE)
    assert "<script" not in drawing.markup()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to draw with")
@pytest.mark.processes
def test_browser_draws_the_timeline(tmp_path: Path) -> None:
    """The page's policy must allow its script."""
    analysis, step = real()
    path = tmp_path / "report.html"
    write_report(path, analysis=analysis, step=step)
    page = opened(tmp_path, path.as_uri())
    assert re.search(r'data-drawn="\d+"', page), page[-500:]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to draw with")
@pytest.mark.processes
def test_browser_shows_location_of_finding_and_selected_step(tmp_path: Path) -> None:
    """The longest wait is for rank 2; step 4 is decompressed only when it is selected."""
    analysis, step = late_rank()
    path = tmp_path / "report.html"
    write_report(path, analysis=analysis, step=step)
    page = opened(tmp_path, f"{path.as_uri()}#place-straggler")
    match = re.search(r'data-shown="(\d+) (\d+) (\d+)"', page)
    assert match is not None, page[-500:]
    rank, begin, end = map(int, match.groups())
    assert rank == 2
    assert 'data-step="5"' in page
    longest = step.waits[0]
    assert longest.on_rank == 2
    assert begin <= longest.start / 1e3 + 1
    assert end >= (longest.start + longest.length) / 1e3 - 1
    assert 'data-step="4"' in opened(tmp_path, f"{path.as_uri()}#step-4")


def with_source_lines() -> tuple[Analysis, StepView]:
    """Return a run whose rank 2 runs two lines. The second line runs twice, the longer time from 44 to 46 ms."""
    analysis, step = late_rank()
    rows = [
        SourceLine(rank=2, file="train.py", line=9, function="main", source=f"    report({HOSTILE})", ms_per_step=5,
                   self_ms=0, samples=9),
        SourceLine(rank=2, file="train.py", line=4, function="report", source="time.sleep(1)", depth=1, ms_per_step=5,
                   self_ms=5, samples=9),
    ]  # fmt: skip
    names = (*step.names, *(row.location.words for row in rows))
    outer, inner = len(names) - 2, len(names) - 1
    track = StepTrack(
        kind="lines", label="source lines", start=(41_000_000, 41_000_000, 44_000_000),
        length=(7_000_000, 500_000, 2_000_000), name=(outer, inner, inner), colour=(0, 0, 0), depth=(0, 1, 1),
    )  # fmt: skip
    ranks = tuple(
        msgspec.structs.replace(rank, tracks=(*rank.tracks, track)) if rank.rank == 2 else rank for rank in step.ranks
    )
    return msgspec.structs.replace(analysis, lines=tuple(rows)), msgspec.structs.replace(step, names=names, ranks=ranks)


def test_rows_of_source_lines_lead_into_the_timeline() -> None:
    analysis, step = with_source_lines()
    page = report(analysis=analysis, step=step)
    buttons = re.findall(r'data-code="line" data-line="([^"]*)" data-ranks="(\d+)"', page)
    assert [(html.unescape(line), rank) for line, rank in buttons] == [
        (one_line(row.location.words)[:160], "2") for row in analysis.lines
    ]
    assert "source line</li>" in page
    in_worker = msgspec.structs.replace(analysis, lines=(msgspec.structs.replace(analysis.lines[0], process="worker"),))
    assert "data-line" not in report(analysis=in_worker, step=step).partition("<script")[0]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to draw with")
@pytest.mark.processes
def test_browser_shows_the_longest_time_of_a_source_line(tmp_path: Path) -> None:
    analysis, step = with_source_lines()
    path = tmp_path / "report.html"
    write_report(path, analysis=analysis, step=step)
    page = opened(tmp_path, f"{path.as_uri()}#line-train.py:4")
    assert 'data-shown="2 44000 46000"' in page, page[-500:]
    assert 'data-shown="2 41000 48000"' in opened(tmp_path, f"{path.as_uri()}#line-train.py:9")


def opened(tmp_path: Path, url: str) -> str:
    """Return the HTML of the page at `url` after its script has run."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    command = ["chromium", *options, f"--user-data-dir={tmp_path / 'profile'}", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
