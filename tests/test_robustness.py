"""Test unusual files, file descriptors and names, and values out of range."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudiag.analysis.scaling.speedup import rate_of, with_speedups
from gpudiag.model.benchmarks.scaling import PointRecord
from gpudiag.model.run_directory import encode_json
from gpudiag.model.sanitize import escaped_json
from gpudiag.model.step_view import STEP_FILE, StepTrack, StepView
from gpudiag.prediction.paths import Paths
from gpudiag.training.session import record
from tests.app.scale.points import measured
from tests.cli_process import environment, in_this_process
from tests.machines import machine

TRACES = Path(__file__).parent / "traces"


def test_columns_of_unequal_lengths_are_refused() -> None:
    sound = StepTrack(kind="host", label="host", start=(1,), length=(1,), name=(0,), colour=(0,), depth=(0,))
    view = {"step": 1, "length": 1, "names": ["a"], "ranks": []}
    told: dict[str, Any] = {"rank": 0, "device": "cpu", "begin": 0, "end": 1, "tracks": [msgspec.to_builtins(sound)]}
    msgspec.convert(view | {"ranks": [told]}, StepView)
    told["tracks"][0]["length"] = []
    with pytest.raises(msgspec.ValidationError, match="unequal lengths"):
        msgspec.convert(view | {"ranks": [told]}, StepView)
    assert STEP_FILE


@pytest.mark.parametrize(
    ("name", "value"), [("freedom", 0.5), ("samples_per_s", 0.0), ("mean_ms", 0.0), ("ci95", [1e300, 1.0])]
)
def test_points_out_of_range_are_refused(name: str, value: object) -> None:
    point = msgspec.to_builtins(measured(1, 30.0))
    msgspec.convert(point, PointRecord)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(point | {name: value}, PointRecord)


def test_zero_throughput_is_no_baseline() -> None:
    nothing = msgspec.structs.replace(measured(1, 30.0), samples_per_s=0.0, ci95=(0.0, 0.0))
    assert rate_of(nothing) is None
    assert all(point.speedup is None for point in with_speedups([nothing, measured(4, 40.0)]))


def test_empty_batch_has_no_durations() -> None:
    from gpudiag.analysis.scaling.forecast import durations
    from gpudiag.model.benchmarks.scale_request import Wanted

    point = measured(1, 30.0)
    assert durations([point], Wanted(samples=10, iterations=10))
    assert durations([msgspec.structs.replace(point, global_batch=0)], Wanted(samples=10, iterations=10)) == ()


def test_zero_bandwidth_counts_as_not_measured() -> None:
    facts = machine("h200x4")
    without = msgspec.structs.replace(facts, bandwidth=())
    zero = msgspec.structs.replace(
        facts, bandwidth=tuple(msgspec.structs.replace(rate, gb_per_s=0.0) for rate in facts.bandwidth)
    )
    for path in ("host_to_device", "device_to_host"):
        assert Paths(zero, (0, 1)).all_rate(path) == Paths(without, (0, 1)).all_rate(path) > 0
    assert Paths(zero, (0, 1)).host_memory() == Paths(without, (0, 1)).host_memory() > 0


def test_json_has_no_terminal_control_characters() -> None:
    hostile = "a\u009b31mb\u202ec\u2028d\x7fe\U000e0001f\u00e9"
    text = escaped_json(json.dumps({"a": hostile}, ensure_ascii=False).encode())
    assert json.loads(text) == {"a": hostile}
    assert text.decode().isprintable()
    assert "\u00e9" in text.decode()
    assert escaped_json(encode_json(msgspec.structs.replace(measured(1, 30.0), error=hostile))).count(b"\\u202e") == 1


def test_nan_and_infinity_are_null_in_json() -> None:
    point = msgspec.structs.replace(measured(1, 30.0), samples_per_s=float("nan"), mean_ms=float("inf"))
    decoded = json.loads(encode_json(point), parse_constant=pytest.fail)
    assert decoded["samples_per_s"] is decoded["mean_ms"] is None


@pytest.mark.parametrize("words", [("analyze", "{}", "--json"), ("analyze", "{}"), ("report", "{}")])
def test_directory_name_may_be_invalid_utf8(words: tuple[str, ...], tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + b"/d\xff"
    shutil.copytree(TRACES / "clean", os.fsdecode(directory))
    done = in_this_process(*(word.replace("{}", os.fsdecode(directory)) for word in words))
    assert done.returncode == 0, done.stderr
    if "--json" in words:
        json.loads(done.stdout)


def test_records_are_found_by_file_not_by_world_size(tmp_path: Path) -> None:
    """Reading must not loop over all ranks, which are three million for a job with RANK=3000000."""
    begun = time.process_time()
    assert record.read_ranks(tmp_path, 50_000_000) == ()
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank٣.json").write_text("{}")
    (tmp_path / "ranks" / "rank5.json").write_text("{}")
    assert record.read_ranks(tmp_path, 50_000_000) == ()
    assert time.process_time() - begun < 10


@pytest.mark.processes
@pytest.mark.parametrize("prelude", ["exec >&-;", "exec 2>&-;", "ulimit -n 12;"])
def test_closed_streams_and_few_descriptors_are_handled(prelude: str) -> None:
    command = f'{prelude} exec "{sys.executable}" -m gpudiag analyze "{TRACES / "clean"}"'
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=environment(), timeout=300, check=False
    )
    assert "Traceback" not in done.stderr + done.stdout
    assert "unexpected" not in done.stderr
    assert done.returncode in ({0} if "&" in prelude else {0, 5}), done.stderr


#: Names of modules that are imported early, late, by multiprocessing, or by frameworks.
_SHADOWS = ("json", "random", "socket", "pickle", "array", "struct", "subprocess", "logging", "re", "queue", "torch")


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [
        ("analyze", "."),
        ("report", ".", "--html", "-"),
        ("table", "."),
        ("view", ".", "--no-open", "--port", "0"),
        ("recommend", "mlp", "--predict-only"),
        ("scale", "--from", "."),
        (
            "profile",
            "trivial",
            "--devices",
            "1",
            "--batch-size",
            "2",
            "--warmup",
            "1",
            "--steps",
            "2",
            "--output",
            "out",
        ),
    ],
    ids=lambda words: words[0],
)
def test_no_module_is_imported_from_the_current_directory(words: tuple[str, ...], tmp_path: Path) -> None:
    shutil.copytree(TRACES / "clean", tmp_path, dirs_exist_ok=True)
    for name in _SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n")
    code = "import sys; from gpudiag.commands.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )
    assert not (tmp_path / "imported").exists(), (tmp_path / "imported").read_text()
    assert done.returncode in {0, 2, 3, 4} or "TensorBoard" in done.stderr, done.stderr


def test_twenty_thousand_points_are_compared_in_seconds(tmp_path: Path) -> None:
    """A comparison of all pairs of twenty thousand points would take 200 million comparisons."""
    from gpudiag.analysis.scaling.table import results_table

    points = [msgspec.structs.replace(measured(1, 30.0), id=f"p{n}", batch_per_device=n + 1) for n in range(20_000)]
    begun = time.process_time()
    assert len(with_speedups(points)) == len(results_table([("x", point) for point in points]).groups) == 20_000
    assert time.process_time() - begun < 30
