"""Test `gpudiag diff` on real traces of four GPUs: a clean job, and a job with a slow loader on rank 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpudiag.analysis.comparison import compare
from gpudiag.commands.diff import regressed
from gpudiag.errors import UnreadableInputError
from gpudiag.model.run_directory import encode_json
from tests.analysis.comparison.runs import healthy, late_rank, run, source
from tests.cli_process import gpudiag, in_this_process

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis

pytestmark = pytest.mark.processes

TRACES = Path(__file__).parents[1] / "traces"
REGRESSION = ("--fail-on", "regression=5%")


def saved(path: Path, analysis: Analysis) -> str:
    path.write_bytes(encode_json(analysis))
    return str(path)


@pytest.fixture(scope="module")
def slow_loader() -> dict[str, Any]:
    """Return the JSON difference between a clean job and a job with a late loader on rank 2."""
    result = gpudiag("diff", "clean", "slow_loader_rank2", "--json", cwd=TRACES)
    assert (result.returncode, result.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_json_is_alone_on_standard_output_and_adds_up(slow_loader: dict[str, Any]) -> None:
    assert slow_loader["schema"] == "gpudiag/diff/1"
    difference = slow_loader["steps"][0]["difference_ms"]
    assert difference > 20
    assert sum(bucket["difference_ms"] for bucket in slow_loader["buckets"]) == pytest.approx(difference)
    for bucket in slow_loader["buckets"]:
        parts = sum(part["difference_ms"] for part in bucket["parts"])
        assert parts + bucket["rest_ms"] == pytest.approx(bucket["difference_ms"])
    for rank in slow_loader["ranks"]:
        assert sum(rank["buckets_ms"].values()) == pytest.approx(rank["difference_ms"])


def test_slow_loader_is_attributed_to_its_rank_and_waiting_to_others(slow_loader: dict[str, Any]) -> None:
    by_rank = {rank["rank"]: rank for rank in slow_loader["ranks"]}
    late = by_rank.pop(2)
    # The loader is not marked, so its time is the gap before the step's first operator.
    assert late["buckets_ms"]["idle"] + late["buckets_ms"]["input"] > 0.8 * late["difference_ms"]
    assert late["parts"][0]["name"] == "unmarked-input"
    assert by_rank
    for rank in by_rank.values():
        assert rank["buckets_ms"]["communication_wait"] > 0.8 * rank["difference_ms"]
    cause = slow_loader["cause"]
    assert (cause["bucket"], cause["ranks"]) == ("idle", [2])
    assert {wait["on_rank"] for wait in slow_loader["waits"] if wait["difference_ms"] > 20} == {2}
    appeared = [finding["after"] for finding in slow_loader["findings"] if finding["status"] == "appeared"]
    assert ("straggler", [2]) in [(finding["code"], finding["ranks"]) for finding in appeared]


def test_saved_analysis_gives_the_same_difference_as_its_traces(tmp_path: Path, slow_loader: dict[str, Any]) -> None:
    kept = tmp_path / "clean.json"
    kept.write_text(in_this_process("analyze", "clean", "--json", cwd=TRACES).stdout, encoding="utf-8")
    result = in_this_process("diff", str(kept), str(TRACES / "slow_loader_rank2"), "--json")
    assert json.loads(result.stdout)["buckets"] == slow_loader["buckets"]


def test_the_report_of_two_saved_analyses_follows_the_width(tmp_path: Path) -> None:
    before, after = saved(tmp_path / "a.json", healthy()), saved(tmp_path / "b.json", late_rank())
    result = in_this_process("diff", before, after, "--width", "60")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("SLOWER  ")
    assert max(len(line) for line in result.stdout.splitlines()) <= 60


@pytest.mark.parametrize(("before", "after", "code"), [("a", "b", 1), ("b", "a", 0), ("a", "a", 0)])
def test_fail_on_sets_the_exit_code_but_not_the_json(before: str, after: str, code: int, tmp_path: Path) -> None:
    saved(tmp_path / "a.json", healthy())
    saved(tmp_path / "b.json", late_rank())
    result = in_this_process("diff", f"{before}.json", f"{after}.json", "--json", *REGRESSION, cwd=tmp_path)
    assert result.returncode == code
    assert json.loads(result.stdout)["schema"] == "gpudiag/diff/1"
    assert result.stderr == ("gpudiag: --fail-on regression=5% was crossed\n" if code else "")


def test_undecidable_regression_does_not_pass(tmp_path: Path) -> None:
    before = saved(tmp_path / "a.json", healthy())
    few = msgspec.structs.replace(
        late_rank(),
        devices=tuple(
            msgspec.structs.replace(device, step_times_ms=device.step_times_ms[:2]) for device in late_rank().devices
        ),
    )
    result = in_this_process("diff", before, saved(tmp_path / "b.json", few), *REGRESSION)
    assert result.returncode == 4
    assert result.stdout.startswith("CANNOT TELL  ")
    first, second = result.stderr.splitlines()
    assert "noise is unknown" in first
    assert second.startswith("  hint: Record five steps or more")


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "jitter", "percent", "crossed"),
    [
        (100.0, 106.0, 0.1, 5, True),
        (100.0, 104.0, 0.1, 5, False),
        (100.0, 105.0, 0.1, 5, False),
        (100.0, 106.0, 20.0, 5, False),
        (100.0, 90.0, 0.1, 0, False),
        (100.0, 100.5, 0.1, 0, True),
    ],
)
def test_regression_exceeds_threshold_and_noise(
    before_ms: float, after_ms: float, jitter: float, percent: float, crossed: bool
) -> None:
    jitters = (-jitter, 0.0, jitter, -jitter, jitter)
    runs = [run({"compute": mean}, jitter_ms=jitters) for mean in (before_ms, after_ms)]
    assert regressed(compare(*runs), percent) is crossed


def test_few_steps_without_slowdown_need_no_noise() -> None:
    runs = [run({"compute": mean}, jitter_ms=(0.0, 0.1)) for mean in (100.0, 104.0)]
    assert not regressed(compare(*runs), 5)


@pytest.mark.parametrize("change", [{"batch_size_per_device": 128}, {"workload": "vgg16"}])
def test_different_work_is_no_regression(change: dict[str, Any]) -> None:
    after = msgspec.structs.replace(healthy(), source=source(**change))
    with pytest.raises(UnreadableInputError, match="no regression"):
        regressed(compare(healthy(), after), 5)


@pytest.mark.parametrize(
    "word", ["regression", "regression=5", "regression=-5%", "regression=%", "slowdown=5%", "regression=1e3%", "5%", ""]
)
def test_unknown_threshold_is_refused_before_any_work(word: str) -> None:
    result = in_this_process("diff", "gone", "gone", "--fail-on", word)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "regression=5%" in result.stderr.splitlines()[1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b'{"schema": "gpudiag/analysis/99"}',
        b'{"schema": "gpudiag/analysis/1"',
        encode_json(run()),
        encode_json(run({"compute": 1e308})),
        encode_json(run({"compute": float("nan")})),
    ],
)
def test_bad_input_on_either_side_gives_code_4_one_line_and_a_hint(content: bytes, tmp_path: Path) -> None:
    good = saved(tmp_path / "good.json", healthy())
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    for pair in ((good, str(bad)), (str(bad), good)):
        result = in_this_process("diff", *pair)
        assert result.returncode == 4, result.stderr
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize("words", [["a"], [], ["a", "b", "c"]])
def test_diff_needs_two_runs(words: list[str]) -> None:
    result = in_this_process("diff", *words)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 2
