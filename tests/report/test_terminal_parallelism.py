"""Test the terminal report, Markdown and tables of jobs with pipelines or tensor parallelism."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from gpudiag.app.analyze import analyze
from gpudiag.model.parallelism import Parallelism, Pass, PassOfStage, PipelineShape, RankPlace, RoleTraffic
from gpudiag.report.figures import TIMES
from gpudiag.report.palette import Fill
from gpudiag.report.terminal.parallelism import timeline_row
from gpudiag.report.terminal.report import render_analysis
from gpudiag.report.text.run import to_markdown
from tests import builders
from tests.report.consoles import console, drawn
from tests.report.parallel_job import pipeline_job, tensor_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.model.analysis import Analysis

ANSI = re.compile(r"\x1b\[[0-9;]*m")
CASES: dict[str, Callable[[], Analysis]] = {"pipeline": pipeline_job, "tensor": tensor_job}
PLAIN: dict[Pass, Fill] = {
    "forward": Fill(glyph="f", style=""),
    "backward": Fill(glyph="b", style=""),
    "both": Fill(glyph="x", style=""),
}


def timeline_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"stage \d+ +\S*[▒█▓+#]", line)]


def a_pass(direction: Pass, microbatch: int, start_ms: float, end_ms: float, stage: int = 0) -> PassOfStage:
    return PassOfStage(
        rank=stage, stage=stage, direction=direction, microbatch=microbatch, start_ms=start_ms, end_ms=end_ms
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("case", CASES)
def test_report_equals_its_golden(case: str, width: int, golden: Callable[[str, str], None]) -> None:
    output = drawn(CASES[case](), width)
    assert max(map(cell_len, output.splitlines())) <= width
    golden(f"parallel-{case}-{width}.txt", output)


@pytest.mark.parametrize("case", CASES)
def test_full_report_has_the_place_of_each_rank(case: str, golden: Callable[[str, str], None]) -> None:
    golden(f"parallel-{case}-full-120.txt", drawn(CASES[case](), 120, full=True))


@pytest.mark.long
def test_timeline_has_microbatches_in_order_of_passes(whole_recording: Callable[[str], Path]) -> None:
    analysis = analyze([whole_recording("parallel/pp2dp2_1f1b")])
    first, last = timeline_of(drawn(analysis, 100, full=True))
    assert re.findall(r"\d", first.removeprefix("stage 0 ")) == list("01021323")
    assert re.findall(r"\d", last.removeprefix("stage 1 ")) == list("00112233")


@pytest.mark.parametrize("colour", ["standard", "256"])
def test_color_changes_no_sign_of_the_timeline(colour: str) -> None:
    colored = drawn(pipeline_job(), 100, colour="standard" if colour == "standard" else "256", full=True)
    assert timeline_of(ANSI.sub("", colored)) == timeline_of(drawn(pipeline_job(), 100, full=True))
    assert "\x1b" in colored


def test_ascii_console_has_ascii_signs() -> None:
    target = console(100, encoding="ascii")
    render_analysis(pipeline_job(), target, full=True)
    assert isinstance(target.file, io.StringIO)
    lines = timeline_of(target.file.getvalue())
    assert len(lines) == 4
    assert all(line.isascii() for line in lines)
    assert "0++" in lines[0]
    assert "0####" in lines[0]


def test_pass_starts_with_its_number_where_it_fits() -> None:
    passes = [a_pass("forward", 0, 0, 30), a_pass("backward", 12, 30, 70), a_pass("both", 3, 90, 100)]
    assert timeline_row(passes, 100, 10, PLAIN, ".").plain == "0ff12bb..x"


def test_short_pass_has_one_cell() -> None:
    passes = [a_pass("forward", 0, 0, 0.1), a_pass("backward", 0, 99.9, 100)]
    assert timeline_row(passes, 100, 10, PLAIN, ".").plain == "f........b"


def test_pass_of_unknown_direction_is_explained() -> None:
    pipeline = PipelineShape(stages=2, microbatches=2, theoretical_percent=33.3, passes=(a_pass("both", 0, 0, 10),))
    grid = Parallelism(sizes={"pipeline": 2}, stated=True, pipeline=pipeline)
    output = drawn(builders.analysis(builders.device(0, compute=10.0), parallelism=grid), 80, full=True)
    assert "▓ forward or backward" in output
    bubble = "Bubble: not simulated; (p-1)/(m+p-1) gives 33.3 % for 2 stages and 2 microbatches."
    assert bubble in output.replace("\n", " ")


def test_header_says_how_the_grid_is_known() -> None:
    assert f"Parallelism: pipeline 4 {TIMES} data 2 (stated by the process groups)" in drawn(
        pipeline_job(), 80, full=True
    )
    assert f"Parallelism: shard 2 {TIMES} tensor 2 (inferred from the communication)" in drawn(
        tensor_job(), 80, full=True
    )
    assert "Parallelism" not in drawn(builders.late_loader(), 80, full=True)


def test_first_line_of_a_short_report_has_the_grid() -> None:
    assert drawn(pipeline_job(), 100).splitlines()[0].endswith(f" · pipeline 4 {TIMES} data 2")


def test_slowest_rank_of_a_stage_is_named() -> None:
    row = next(line for line in drawn(pipeline_job(), 100, full=True).splitlines() if re.match(r" +2  +4 and 5", line))
    assert row.split()[-2:] == ["5", "1.04"]


def hostile_job() -> Analysis:
    """Return a pipeline job with hostile names, absurd figures, and thousands of ranks and passes."""
    job = pipeline_job()
    assert job.parallelism is not None
    assert job.parallelism.pipeline is not None
    name = "\x1b[2J|<script>[bold]" + 400 * "x"
    traffic = RoleTraffic(
        role="unknown",
        operations={f"{name}{number}": 1e15 for number in range(300)},
        transfer_ms=1e12,
        wait_ms=float("nan"),
        hidden_ms=float("inf"),
        size_bytes=2**60,
    )
    ranks = tuple(RankPlace(rank=rank, position={}, compute_ms=1e12, relative=1e15) for rank in range(3000))
    passes = (
        *(a_pass("forward", number, 1e11 * number, 1e12, number) for number in range(200)),
        a_pass("backward", 2**20, 1e12, 0.0),
        a_pass("both", 1, 0.0, float("inf")),
        *(a_pass("both", number, 0.0, 1e-9) for number in range(5000)),
    )
    pipeline = replace(job.parallelism.pipeline, passes=passes, stages=2**50, bubble_ms=float("nan"))
    grid = replace(job.parallelism, traffic=(traffic,) * 50, ranks=ranks, pipeline=pipeline)
    return replace(job, parallelism=grid)


@pytest.mark.parametrize("width", [40, 100])
def test_implausible_grid_stays_within_the_terminal(width: int) -> None:
    output = drawn(hostile_job(), width, full=True)
    assert "\x1b" not in output
    assert max(map(cell_len, output.splitlines())) <= width
    assert len(output.splitlines()) < 2000


def test_markdown_has_traffic_and_stages() -> None:
    text = to_markdown(pipeline_job())
    assert "| pipeline | 4 | 8.3 | 90.0 | 15.7 | 51.2 kB | 16 sends, 16 receives |" in text
    assert "| 2 | 4 and 5 | 250.0 | 1.03 | 88.3 | 5 | 1.04 |" in text
    assert "(p-1)/(m+p-1) gives 27.3 % for 4 stages and 8 microbatches." in text
    assert "<script>" not in to_markdown(hostile_job())


def test_frames_have_ranks_traffic_and_passes() -> None:
    frames = pipeline_job().frames()
    assert list(frames.parallel_ranks.columns) == ["rank", "pipeline", "data", "compute_ms", "relative"]
    assert frames.parallel_ranks.pipeline.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    traffic = frames.parallel_traffic.set_index("role")
    assert traffic.loc["pipeline", "recv_per_step"] == 16
    assert traffic.loc["data", ["size", "size_bytes"]].tolist() == [2, 268_800]
    assert len(frames.pipeline_passes) == 4 * 2 * 8
    assert builders.late_loader().frames().parallel_traffic.empty
