"""Test the answers for agents: their content, their bounds, and the check of paths."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from gpudiag.app.agent.allowed_paths import AllowedPaths
from gpudiag.app.agent.bounded_answer import bounded_json
from gpudiag.app.agent.questions import Questions
from gpudiag.errors import UnreadableInputError, UsageError
from gpudiag.model.analysis import BUCKETS, FINDING_CODES

TRACES = Path(__file__).parents[2] / "traces"
JOB = ["gloo_dataloader"]


@pytest.fixture(scope="module")
def questions() -> Questions:
    return Questions(AllowedPaths(TRACES), 20_000)


def test_summary_has_the_verdict_first_and_buckets_that_sum_to_the_step(questions: Questions) -> None:
    answer = json.loads(questions.analyze(JOB))
    assert next(iter(answer)) == "verdict"
    assert answer["verdict"]["title"] == "Communication adds 23.5 ms per step"
    assert [rank["rank"] for rank in answer["ranks"]] == answer["ranks_present"] == [0, 1]
    for rank in answer["ranks"]:
        assert math.isclose(sum(rank[bucket] for bucket in BUCKETS), rank["step_ms"])


def test_findings_of_one_code_have_evidence_and_advice(questions: Questions) -> None:
    (finding,) = json.loads(questions.findings(JOB, "input-bound"))["findings"]
    assert finding["evidence"]
    assert finding["advice"]
    with pytest.raises(UsageError, match="no finding 'input-bond'"):
        questions.findings(JOB, "input-bond")


def test_table_has_the_largest_rows_of_the_chosen_columns(questions: Questions) -> None:
    answer = json.loads(questions.table(JOB, "kernels", ["ms_per_step"], "ms_per_step", 3))
    times = [row["ms_per_step"] for row in answer["rows"]]
    assert times == sorted(times, reverse=True)
    assert (len(times), answer["rows_in_table"] > 3) == (3, True)
    with pytest.raises(UsageError, match="no table 'kernel'"):
        questions.table(JOB, "kernel")
    with pytest.raises(UsageError, match="no column 'ms'"):
        questions.table(JOB, "kernels", ["ms"])


def test_every_table_can_be_encoded(questions: Questions) -> None:
    names = "devices buckets steps waits collectives operators modules findings lines compute_classes tries"
    for name in (*names.split(), "parallel_ranks", "parallel_traffic", "pipeline_passes"):
        assert json.loads(questions.table(JOB, name, limit=2))["table"] == name


def test_picture_has_a_row_per_rank_whose_characters_follow_the_buckets(questions: Questions) -> None:
    lines = questions.picture(JOB, 80).splitlines()
    rows = [line for line in lines if line.startswith("rank ") and "waits" not in line]
    assert [len(row) for row in rows] == [80 + len("rank 0 ")] * 2
    assert set("".join(row.partition(" ")[2][2:] for row in rows)) <= set("#Tw=ISL. ")


def test_every_finding_is_explained(questions: Questions) -> None:
    for code in FINDING_CODES:
        answer = json.loads(questions.explain(code))
        assert answer["title"]
        assert (TRACES.parents[1] / answer["page"]).is_file()


def test_comparison_names_the_outcome(questions: Questions) -> None:
    answer = json.loads(questions.compare(JOB, JOB))
    assert (answer["outcome"], answer["steps"][0]["difference_ms"]) == ("no-difference", 0.0)


@pytest.mark.parametrize("path", ["..", "../golden", "/etc/passwd", "gloo_dataloader/../../golden", "a\0b"])
def test_paths_outside_of_the_directory_are_refused(questions: Questions, path: str) -> None:
    with pytest.raises(UsageError):
        questions.analyze([path])


def test_links_that_lead_out_of_the_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "job").symlink_to(TRACES / "gloo_dataloader")
    with pytest.raises(UsageError, match="outside of"):
        Questions(AllowedPaths(tmp_path), 20_000).analyze(["job"])


def test_a_directory_without_traces_is_reported(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnreadableInputError, match="no traces"):
        Questions(AllowedPaths(tmp_path), 20_000).analyze(["empty"])


def test_a_run_that_was_recorded_again_is_analysed_again(tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(TRACES / "gloo_dataloader", job)
    questions = Questions(AllowedPaths(tmp_path), 20_000)
    assert json.loads(questions.analyze(["job"]))["ranks_present"] == [0, 1]
    next(path for path in sorted(job.iterdir()) if "1" in path.name).unlink()
    assert json.loads(questions.analyze(["job"]))["ranks_present"] == [0]


def test_long_answers_are_cut_and_say_where() -> None:
    answer = {"kernels": [{"name": "k" * 100, "ms": float("nan")}] * 5000, "note": "n" * 5000, "few": [1, 2]}
    text = bounded_json(answer, 4000)
    assert len(text) <= 4000
    decoded = json.loads(text)
    assert {note["where"]: note["of"] for note in decoded["cut"]} == {"kernels": 5000, "note": 5000}
    assert decoded["kernels"][0]["ms"] is None
    assert decoded["few"] == [1, 2]


def test_an_answer_that_cannot_be_cut_enough_is_left_out() -> None:
    text = bounded_json({str(number): "x" * 100 for number in range(1000)}, 2000)
    assert json.loads(text)["cut"][0]["where"] == "everything"


def test_warnings_are_explained_with_what_to_do(questions: Questions) -> None:
    answer = json.loads(questions.explain("few-steps"))
    assert answer["kind"] == "warning"
    assert answer["advice"][0]["advice"]
