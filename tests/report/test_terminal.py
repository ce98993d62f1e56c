"""Test the terminal report at several widths and in color."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from gpudiag.model.analysis import (
    BUCKETS,
    Analysis,
    CollectiveSummary,
    Device,
    Explained,
    Finding,
    Modules,
    Steps,
    Validity,
)
from gpudiag.model.run import RecordingCost, UnprofiledRank
from gpudiag.report.figures import EN_DASH, MINUS, TIMES
from gpudiag.report.header import header_lines, overhead_lines
from gpudiag.report.text.run import to_markdown
from tests import builders
from tests.examples import examples
from tests.report.complete_analysis import completed
from tests.report.consoles import drawn

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: dict[str, Callable[[], Analysis]] = {
    "late_loader": builders.late_loader,
    "processor_only": builders.processor_only,
    "many_ranks": builders.many_ranks,
    "hostile": builders.hostile,
    "either_suffices": lambda: completed(builders.late_loader()),
}
WIDTHS = (40, 80, 120)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", CASES)
def test_report_equals_its_golden(case: str, width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"report-{case}-{width}.txt", drawn(CASES[case](), width))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", ["either_suffices", "processor_only", "many_ranks", "hostile"])
def test_full_report_equals_its_golden(case: str, width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"report-{case}-full-{width}.txt", drawn(CASES[case](), width, full=True))


@pytest.mark.parametrize("colour", ["standard", "256"])
def test_report_in_color_equals_its_golden(colour: str, golden: Callable[[str, str], None]) -> None:
    output = drawn(builders.late_loader(), 80, colour="standard" if colour == "standard" else "256")
    golden(f"report-late_loader-80-{colour}.ansi", output)


def test_color_changes_no_word() -> None:
    plain = drawn(builders.late_loader(), 80)
    coloured = ANSI.sub("", drawn(builders.late_loader(), 80, colour="standard"))
    assert coloured == plain


@pytest.mark.parametrize("width", [*WIDTHS, 43, 57, 64, 99, 200])
@pytest.mark.parametrize("case", CASES)
def test_no_line_is_wider_than_the_terminal_and_none_ends_in_spaces(case: str, width: int) -> None:
    for full in (False, True):
        lines = drawn(CASES[case](), width, all_ranks=True, full=full).splitlines()
        assert max(cell_len(line) for line in lines) <= width
        assert all(line == line.rstrip(" ") for line in lines)


@pytest.mark.parametrize("colour", [None, "256"])
def test_names_from_files_are_shown_without_effect(colour: str | None) -> None:
    output = drawn(builders.hostile(), 80, colour="256" if colour else None, full=True)
    text = ANSI.sub("", output)
    assert not [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs"} and c != "\n"]
    assert "[bold red]" in text.replace("\n", " ")
    assert "␛[2J" in text
    assert ":skull:" in text.replace("\n", " ")


def test_first_lines_have_job_step_time_and_verdict() -> None:
    top = "\n".join(drawn(builders.late_loader(), 80).splitlines()[:7])
    for fact in (
        "resnet50",
        "nccl",
        f"4 {TIMES} NVIDIA H200",
        "Step 57.1 ms (56.6 ms while profiling)",
        "CRITICAL",
        "Rank 2",
    ):
        assert fact in top
    assert f"57.1 → 31.0 ms per step ({MINUS}46 %)" in top


def test_many_ranks_are_summarized_unless_all_are_requested() -> None:
    summary = drawn(builders.many_ranks(128, late=17), 80)
    assert len(summary.splitlines()) < 25
    assert "23 % wait for rank 17" not in summary, "the median of ranks waits for no rank"
    assert re.search(r"^rank 17 .* 94 % compute, 6 % transfer$", summary, re.MULTILINE)
    assert f"Ranks 0{EN_DASH}16 and 18{EN_DASH}127 waited" in drawn(builders.many_ranks(128, late=17), 80, full=True)
    everything = drawn(builders.many_ranks(128, late=17), 80, all_ranks=True)
    assert all(f"rank {rank} " in everything for rank in range(128))


def test_report_without_findings_says_what_to_record() -> None:
    analysis = builders.analysis(
        builders.device(0, compute=10.0), validity=(Validity(code="few-steps", message="1 step was analysed"),)
    )
    output = drawn(analysis, 80)
    assert "No finding: the GPU computes for 100 % of the step." in output
    assert "Next  Record again (few-steps): 1 step was analysed" in output
    unexplained = Explained(bucket="idle", ms=1.9, unexplained_ms=1.9)
    output = drawn(replace(analysis, explained=(unexplained,)), 80)
    assert "No cause found for idle: 1.9 ms (19 %) of a step." in output
    assert "Also" not in output, "title and next step have all that is known"
    full = drawn(replace(analysis, explained=(unexplained,)), 80, full=True)
    assert "idle 1.9 ms (19 %): no known cause" in full
    assert "few-steps: 1 step was analysed" in full
    output = drawn(replace(analysis, explained=(unexplained,), validity=()), 80)
    assert "Record again" not in output, "no warning requires another recording"


def test_communication_of_one_rank_of_several_may_be_waits() -> None:
    missing = Validity(code="missing-ranks", message="3 of 4 ranks missing. Give the traces of all ranks.")
    analysis = builders.analysis(
        builders.device(1, compute=2.0, communication_transfer=8.0),
        world_size=4,
        validity=(missing,),
        explained=(Explained(bucket="communication_transfer", ms=8.0, unexplained_ms=8.0),),
        collectives=(
            CollectiveSummary(
                operation="all_reduce",
                group="0",
                ranks=4,
                size_bytes=17_600_000,
                per_step=1.0,
                transfer_us=8000.0,
                wait_us=0.0,
                busbw_gb_per_s=3.35,
                probe_busbw_gb_per_s=250.0,
            ),
        ),
    )
    output = drawn(analysis, 200)
    assert (
        "Communication, including waits for other ranks, takes 8.0 ms (80 %) of a step; "
        "all-reduce of 17.6 MB runs at 3.35 of 250 GB/s." in output
    )
    assert "Next  Analyze the traces of all ranks, recorded in the same steps" in output
    assert "no known cause" not in output


def test_info_finding_is_no_verdict_if_part_of_the_step_is_unexplained() -> None:
    small = Finding(
        code="slow-copy", severity="info", title="copies take 0.1 ms", recoverable_ms_per_step=0.1, advice=("Pin.",)
    )
    analysis = replace(builders.processor_only(), findings=(small,))
    assert "INFO    Copies take 0.1 ms" in drawn(analysis, 80)
    unexplained = Explained(bucket="idle", ms=1.9, unexplained_ms=1.9)
    output = drawn(replace(analysis, explained=(unexplained,)), 80)
    assert "INFO" not in output
    assert "No cause found for idle" in output
    assert "Pin." not in output, "the report without a verdict has advice"
    assert "Also  slow-copy 0.1 ms (<1 %)" in output, "the info finding is not listed"


def test_missing_figures_have_reasons() -> None:
    steps = Steps(analysed=3, mean_ms=10, median_ms=10, reasons={"unprofiled_mean_ms": "only traces were given"})
    output = drawn(builders.analysis(builders.device(0, compute=10.0), steps=steps), 80, full=True)
    assert "Step time without profiling not measured: only traces were given" in output.replace("\n", " ")


def test_reason_for_unknown_modules_is_shown() -> None:
    analysis = replace(builders.many_ranks(), modules=Modules(reason="torch.compile has compiled it"))
    assert "\nModules\nnot known: torch.compile has compiled it\n" in drawn(analysis, 80, full=True)
    assert "## Modules\n\nNot known: torch.compile has compiled it.\n" in to_markdown(analysis)
    assert "Modules" not in drawn(replace(analysis, modules=None), 80, full=True)


def test_untrusted_data_gets_neither_fix_nor_order_of_fixes() -> None:
    whole = completed(builders.late_loader())
    advice = whole.findings[0].advice[0]
    assert "then limited by communication" in drawn(whole, 200)
    assert advice in drawn(whole, 200)
    mixed = replace(whole, validity=(Validity(code="mixed-runs", message="two runs: give one"),))
    assert advice not in drawn(mixed, 200)
    assert "Fixes in order" not in drawn(mixed, 200, full=True).partition("Where a step")[0]
    assert "Next    Record again (mixed-runs): two runs: give one" in drawn(mixed, 200)


def test_missing_ranks_are_in_the_first_line() -> None:
    analysis = builders.analysis(*(builders.device(rank, compute=10.0) for rank in (0, 1, 3)), world_size=4)
    assert f"3 {TIMES} NVIDIA H200 (3 of 4 ranks)" in drawn(analysis, 80).splitlines()[0]


def test_report_without_devices_is_valid() -> None:
    analysis = Analysis(
        framework="pytorch",
        world_size=1,
        ranks_present=(),
        steps=Steps(analysed=0, mean_ms=0.0, median_ms=0.0),
        devices=(),
    )
    assert "no device" in drawn(analysis, 40)


def test_compute_bound_precedes_other_info_findings() -> None:
    small = Finding(code="slow-copy", severity="info", title="copies take 3 %", recoverable_ms_per_step=0.3)
    plain = Finding(code="compute-bound", severity="info", title="the devices compute", recoverable_ms_per_step=0.0)
    analysis = builders.analysis(builders.device(0, compute=10.0), findings=(small, plain))
    verdict = next(line for line in drawn(analysis, 80).splitlines() if line.startswith("INFO"))
    assert "The devices compute" in verdict


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.dictionaries(st.sampled_from(BUCKETS), st.floats(0, 1e6), min_size=1), min_size=1, max_size=12),
    st.integers(40, 160),
)
def test_any_figures_fit_any_width(buckets: list[dict[str, float]], width: int) -> None:
    devices = tuple(
        Device(rank=rank, device="cuda", step_ms=sum(parts.values()), buckets_ms=parts, hidden_communication_ms=0.0)
        for rank, parts in enumerate(buckets)
    )
    assert max(cell_len(line) for line in drawn(builders.analysis(*devices), width).splitlines()) <= width


@pytest.mark.parametrize(
    ("job", "input_ms", "said"),
    [
        (builders.late_loader(), None, "launching 8.00 ms"),
        (builders.processor_only(), 2.0, "data loading 2.00 ms, everything else 8.00 ms"),
        (builders.processor_only(), None, ""),
    ],
)
def test_job_on_cpus_mentions_neither_launching_nor_gpu_activity(
    job: Analysis, input_ms: float | None, said: str
) -> None:
    timed = (UnprofiledRank(rank=0, step_ms=10.0, input_ms=input_ms, host_ms=8.0, steps=9),)
    cost = RecordingCost(unprofiled_ms=10.0, light_ms=11.0, full_ms=12.0)
    analysis = replace(job, timed=timed, recording=cost)
    lines = "\n".join([*header_lines(analysis), *overhead_lines(analysis)])
    assert ("Without profiling: " in lines) == bool(said)
    assert said in lines
    assert ("recording only GPU activity" in lines) == ("launching" in said)
