"""Test `gpudiag recommend` from the command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import gpudiag.app.recommend.recommend as use_case
from gpudiag.app.recommend.recommend import recommend
from gpudiag.model.benchmarks.strategy_benchmark import NO_TIME
from tests.cli_process import environment, in_this_process
from tests.cli_process import gpudiag as run_cli
from tests.exposure import run_watched
from tests.forked_jobs import with_forked_jobs
from tests.machines import HERE as MACHINES
from tests.prediction.published_systems import TENSORS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

FACTS = str(MACHINES / "h200x4.json")
KEYS = {"schema", "verdict", "recommended", "reason", "ranking", "gain", "ceiling", "flags", "code", "scaling"}
RANKED = {"strategy", "predicted_step_ms", "measured_step_ms", "ci95", "samples_per_s"}


def _sizes(tmp_path: Path) -> str:
    path = tmp_path / "sizes.json"
    path.write_text(json.dumps([16_000_000, 67_000_000, 411_000_000, *[4_000_000] * 13]))
    return str(path)


def _predicted(*arguments: str) -> dict[str, Any]:
    result = in_this_process("recommend", "--predict-only", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_prediction_needs_only_files(tmp_path: Path) -> None:
    given = ("--facts", FACTS, "--gradients", _sizes(tmp_path), "--compute-ms", "19.5", "--batch-size", "64")
    prediction = _predicted(*given)
    assert prediction["schema"] == "gpudiag/recommendation/1"
    assert set(prediction) >= KEYS
    assert all(set(row) >= RANKED for row in prediction["ranking"])
    assert prediction["basis"] == "predicted"
    assert prediction["ceiling"]["step_ms"] == pytest.approx(19.5)
    assert [row["devices"] for row in prediction["scaling"]] == [1, 2, 3, 4]
    assert prediction["scaling"][0]["efficiency"] == 1.0
    far = _predicted(*given, "--no-p2p")
    assert far["recommended"] == "cpu-reduce --compress bf16"
    assert far["flags"] == ["--strategy", "cpu-reduce", "--compress", "bf16", "--no-p2p"]
    assert _predicted(*given, "--no-p2p", "--exact")["recommended"] == "cpu-reduce"


def test_tensorflow_1_is_only_predicted(tmp_path: Path) -> None:
    """AlexNet on two GPUs has published steps of 549 ms with parameters on the GPUs, 717 ms with NCCL and 825 ms with
    parameters on the CPU."""
    sizes = tmp_path / "alexnet.json"
    sizes.write_text(json.dumps(TENSORS["alexnet"][::-1]))
    given = ("--facts", str(MACHINES / "7gforce.json"), "--gradients", str(sizes), "--compute-ms", "372")
    among = ("--only", "replicated-nccl,parameter-server-gpu,parameter-server-cpu")
    prediction = _predicted(*given, "--devices", "2", "--software", "tensorflow-1", *among)
    assert prediction["recommended"] == "parameter-server-gpu"
    steps = {row["strategy"]: row["predicted_step_ms"] for row in prediction["ranking"]}
    assert steps["parameter-server-gpu"] < steps["replicated-nccl"] < steps["parameter-server-cpu"]
    assert prediction["flags"] == []
    assert prediction["code"] == ""
    refused = in_this_process("recommend", "--software", "tensorflow-1")
    assert refused.returncode == 2
    assert "--predict-only" in refused.stderr


def test_without_compute_only_communication_is_predicted_with_a_note(tmp_path: Path) -> None:
    prediction = _predicted("--facts", FACTS, "--gradients", _sizes(tmp_path))
    assert all(row["predicted_step_ms"] is None for row in prediction["ranking"])
    assert prediction["scaling"] == []
    assert any("--compute-ms" in note for note in prediction["notes"])


def test_report_has_verdict_reason_and_change(tmp_path: Path) -> None:
    result = run_cli(
        "recommend",
        "--predict-only",
        "--facts",
        FACTS,
        "--gradients",
        _sizes(tmp_path),
        "--compute-ms",
        "19.5",
        "--no-p2p",
        "--width",
        "90",
    )
    assert result.returncode == 0
    for words in (
        "Use cpu-reduce --compress bf16",
        "there is no peer access",
        "To use it",
        "CpuReduceHook",
        "speedup",
    ):
        assert words in result.stdout or words in " ".join(result.stdout.split()), words
    assert all(len(line) <= 90 for line in result.stdout.splitlines())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2, -3]", "positive"),
        ("[]", "positive"),
        ("{", "no list of gradient sizes"),
        ('["\\u001b[31m"]', "no list of gradient sizes"),
        ('{"schema": "gpudiag/gradients/1", "sizes": [5], "ready": [2.0]}', "ready"),
        ("[" * 100_000, "no list of gradient sizes"),
    ],
)
def test_bad_gradients_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    result = in_this_process("recommend", "--predict-only", "--facts", FACTS, "--gradients", str(path))
    assert result.returncode == 4
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nonsense",), "no workload 'nonsense'"),
        (("mytraining:main",), "cannot change how"),
        (("unet3d-predict",), "does not train"),
        (("unet3d-predict", "--predict-only", "--facts", FACTS), "does not train"),
        (("mlp", "--facts", FACTS), "goes with --predict-only"),
        (("mlp", "--predict-only", "--all"), "runs nothing"),
        (("mlp", "--only", "carrier-pigeon"), "no strategy 'carrier-pigeon'"),
        (("mlp", "--precision", "int8"), "knows no 'int8'"),
        (("--predict-only", "--facts", FACTS, "--devices", "9", "--gradients", "SIZES"), "machine with 4"),
    ],
)
def test_invalid_options_are_usage_errors(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    result = in_this_process("recommend", *(_sizes(tmp_path) if word == "SIZES" else word for word in arguments))
    assert result.returncode == 2, result.stderr
    assert words in result.stderr


def test_one_device_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for arguments in (("trivial", "--devices", "1"), ("--predict-only", "--facts", FACTS, "--devices", "1")):
        result = in_this_process("recommend", *arguments, cwd=tmp_path)
        assert result.returncode == 3, result.stderr
        assert "one device does not communicate" in result.stderr
        assert "independent" in result.stderr
    assert not list(tmp_path.iterdir())


def test_missing_facts_file_is_unreadable(tmp_path: Path) -> None:
    result = in_this_process(
        "recommend", "--predict-only", "--facts", str(tmp_path / "none.json"), "--gradients", _sizes(tmp_path)
    )
    assert result.returncode == 4


#: This program runs the command with a budget of 0 s. The command's option does not allow a budget below 20 s.
AT_ONCE = """
import sys
import msgspec
import gpudiag.app.recommend.recommend as use_case
from gpudiag.commands.main import main

recommend = use_case.recommend
use_case.recommend = lambda request, *rest: recommend(msgspec.structs.replace(request, budget_s=0.0), *rest)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.apart
@pytest.mark.xdist_group("training")
def test_another_account_reaches_only_gloo(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ("recommend", "trivial", "--only", "gloo", "--json", "--output", str(tmp_path / "run"))
    watched = run_watched(sys.executable, "-c", AT_ONCE, *words)
    assert watched.result.returncode == 0, watched.result.stderr
    watched.check()


@pytest.mark.xdist_group("training")
def test_spent_budget_still_measures_one_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two CPU processes, only the simplest strategy and `independent` have two rounds.

    `tests/training/strategies/test_one_file.py` has enough time for several strategies.
    """
    pytest.importorskip("torch")
    monkeypatch.setattr(
        use_case, "recommend", lambda request, *rest: recommend(msgspec.structs.replace(request, budget_s=0.0), *rest)
    )
    words = ("recommend", "trivial", "--batch-size", "4", "--json", "--output", str(tmp_path / "run"))
    result = with_forked_jobs(*words, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    measured = {row["strategy"]: row["rounds"] for row in answer["ranking"] if row["measured_step_ms"] is not None}
    assert measured == {"independent": 2, "gloo": 2}
    left_out = {row["strategy"] for row in answer["ranking"] if row["cannot"] == NO_TIME}
    assert left_out
    assert (answer["basis"], answer["recommended"], answer["scaling"]) == ("measured", "gloo", [])
    (said,) = (note for note in answer["notes"] if note.startswith("the budget was too small"))
    assert f"for {1 + len(left_out)} strategies: measured gloo; left out " in said
    assert all(label in said for label in left_out)
    assert any("of a budget of 0: starting the processes took" in note for note in answer["notes"])
    assert json.loads((tmp_path / "run" / "recommendation.json").read_text()) == answer
    assert (tmp_path / "run" / "contest-trivial.json").is_file()


@pytest.mark.apart
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1) to mount a small disk")
@pytest.mark.xdist_group("training")
def test_full_disk_is_reported_with_its_path(tmp_path: Path) -> None:
    """Use a file system of 16 KiB, which is too small for the logs and the result."""
    pytest.importorskip("torch")
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    mounted = ["sh", "-c", 'mount -t tmpfs -o size=16k none "$0" && exec "$@"', str(tmp_path)]
    if subprocess.run([*alone, *mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets no user mount a disk of their own")
    command = ["recommend", "trivial", "--only", "gloo", "--output", str(tmp_path / "run")]
    result = subprocess.run(
        [*alone, *mounted, sys.executable, "-c", AT_ONCE, *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert result.returncode == 5, result.stderr
    (line,) = (line for line in result.stderr.splitlines() if "No space left on device" in line)
    assert re.search(rf"{re.escape(str(tmp_path))}/run/\S+: No space left on device$", line)
    assert "Traceback" not in result.stderr
