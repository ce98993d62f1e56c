"""Test complete TensorFlow runs on CPU devices: real processes, TensorFlow's profiler and the analysis."""

from __future__ import annotations

import gzip
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli_process import SECONDS, environment, gpudiag, in_this_process
from tests.listeners import beyond_loopback, listeners_meanwhile
from tests.training.jobs.tensorflow_python import profile, tensorflow_python, trained

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.apart, pytest.mark.xdist_group("processes")]


def check(analysis: dict[str, Any], record: dict[str, Any], *, devices: int = 2) -> None:
    """Check that each device is one rank with unprofiled steps, and that its buckets sum to its step time."""
    assert (analysis["framework"], analysis["world_size"]) == ("tensorflow", devices)
    assert analysis["steps"]["analysed"] >= 3
    assert analysis["steps"]["unprofiled_mean_ms"] > 0
    assert [device["rank"] for device in analysis["devices"]] == list(range(devices))
    for device in analysis["devices"]:
        assert sum(device["buckets_ms"].values()) == pytest.approx(device["step_ms"], rel=1e-6)
        assert device["buckets_ms"]["compute"] > 0
    processes = len({rank["pid"] for rank in record["ranks"]})
    for rank in record["ranks"]:
        assert len(rank["unprofiled"]["step_ms"]) == len(rank["timed"]["host_ms"]) == 4
        assert rank["timed"]["lead_ms"] is None
        # Jobs of several CPU processes are recorded only once, because each recording may fail.
        assert (rank["light"] is None) == ("no-light-recording" in rank["notes"]) == (processes > 1)
        assert rank["device"].startswith("CPU:")
    assert record["software"]["tensorflow"]
    assert record["software"]["keras"]


def reached_from_here_alone(addresses: set[str]) -> None:
    """Check that TensorFlow's servers can only be reached from this machine. `tests/commands/test_profile.py` and
    `test_scale.py` check PyTorch's servers."""
    assert addresses
    assert not beyond_loopback(addresses), "other machines can reach a listener of this run"


def test_two_devices_in_one_process(tmp_path: Path) -> None:
    analysis, record = trained(tmp_path, "resnet20-cifar", "--batch-size", "4")
    check(analysis, record)
    assert record["strategy"] == "cpu-reduce"
    assert [rank["device"] for rank in record["ranks"]] == ["CPU:0", "CPU:1"]
    assert len({rank["pid"] for rank in record["ranks"]}) == 1
    assert record["model"]["parameters"] == 269_722
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["light", "rank0.xplane.pb.gz"]
    assert {rank["light_trace"] for rank in record["ranks"]} == {"traces/light/rank0.xplane.pb.gz"}
    assert b"gpudiag.step" in gzip.decompress((tmp_path / "traces" / "light" / "rank0.xplane.pb.gz").read_bytes())
    assert (tmp_path / "report.html").is_file()


def test_two_processes_communicate_gradients(tmp_path: Path) -> None:
    with listeners_meanwhile() as found:
        analysis, record = trained(
            tmp_path, "cnn-cifar", "--strategy", "multi-worker", "--batch-size", "8", "--data", "host"
        )
    check(analysis, record)
    reached_from_here_alone(found)
    assert len({rank["pid"] for rank in record["ranks"]}) == 2
    for device in analysis["devices"]:
        exchange = device["buckets_ms"]["communication_transfer"] + device["buckets_ms"]["communication_wait"]
        assert exchange > 0, "5 MB of gradients travel between the processes"


def test_parameter_server_run_has_no_false_input_finding(tmp_path: Path) -> None:
    with listeners_meanwhile() as found:
        analysis, record = trained(tmp_path, "cnn-cifar", "--strategy", "parameter-server", "--batch-size", "8")
    check(analysis, record)
    reached_from_here_alone(found)
    # The training loop's thread hands steps to workers and waits for them, which is not an input wait. On shared cores
    # one process may have an input finding, but it must not be the first.
    assert [finding["code"] for finding in analysis["findings"]][:1] != ["input-bound"]


def test_options_for_xla_precision_and_device_batches_take_effect(tmp_path: Path) -> None:
    words = ("--strategy", "hierarchical-copy", "--compile", "--precision", "bf16", "--data", "device")
    analysis, record = trained(tmp_path, "cnn-cifar", "--batch-size", "8", *words)
    check(analysis, record)
    chosen = {name: record["options"][name] for name in ("compile", "precision", "data")}
    assert chosen == {"compile": "true", "precision": "bf16", "data": "device"}


def test_model_none_times_input_only(tmp_path: Path) -> None:
    analysis, record = trained(tmp_path, "resnet50", "--model", "none", "--devices", "1", "--batch-size", "64", ranks=1)
    assert record["workload"] == "resnet50 (input only)"
    spent = analysis["devices"][0]["buckets_ms"]
    assert max(spent, key=lambda name: spent[name]) == "input"


_CALLBACK = """
import keras, numpy as np
import gpudiag

def main():
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).random((512, 64), dtype="float32")
    model.fit(x, x[:, :1], batch_size=8, epochs=9, verbose=0, callbacks=[gpudiag.KerasCallback(batch_size=8)])
"""


def test_callback_in_fit_measures_a_user_function(tmp_path: Path) -> None:
    (tmp_path / "fitted.py").write_text(_CALLBACK, encoding="utf-8")
    run_dir = tmp_path / "run"
    analysis, record = trained(run_dir, "fitted:main", "--devices", "1", ranks=1, path=tmp_path)
    check(analysis, record, devices=1)
    assert (record["workload"], record["strategy"]) == ("fitted:main", "own")
    assert record["model"]["parameters"] == 64 * 256 + 256 + 256 + 1
    # Keras fetches the batch within the step's function.
    assert record["ranks"][0]["timed"]["input_ms"] is None
    assert "input_ms" in analysis["timed"][0]["reasons"]


def test_known_keras_failure_is_explained(tmp_path: Path) -> None:
    result = profile(tmp_path, "resnet20-cifar", "--strategy", "central-storage", "--batch-size", "4")
    assert result.returncode == 5
    assert "central-storage does not work with resnet20-cifar: BatchNormalization of Keras" in result.stderr
    assert "Use --strategy cpu-reduce" in result.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--data", "zmq"], "feeds PyTorch's processes only"),
        (["--prefetch"], "always copies ahead"),
        (["unet3d-predict"], "no unet3d-predict for TensorFlow"),
        (["--strategy", "gloo"], "no strategy 'gloo' with --framework tensorflow"),
        (["--memory-format", "nchw"], "no convolutions in nchw for the CPU"),
        (["--data", "device", "--strategy", "parameter-server"], "take batches from the host"),
        (["--bucket-mb", "5"], "--bucket-mb does not go with --framework tensorflow"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:1"], "--nnodes does not go with --framework tensorflow"),
        (["--data", "device", "--model", "none"], "on the device already"),
    ],
)
def test_conflicting_options_are_refused(tmp_path: Path, words: list[str], expected: str) -> None:
    python = ("--framework", "tensorflow", "--python", tensorflow_python(), "--output", str(tmp_path / "run"))
    result = in_this_process("profile", *words, *python, CUDA_VISIBLE_DEVICES="")
    assert (result.returncode, result.stdout) == (2, "")
    assert expected in result.stderr
    assert not (tmp_path / "run").exists()


def test_missing_tensorflow_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {tensorflow_python()} -S "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    words = ("--framework", "tensorflow", "--python", str(program), "--output", str(tmp_path / "run"))
    result = gpudiag("profile", *words, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 5
    what, hint = result.stderr.splitlines()
    assert "has no TensorFlow" in what
    assert "pip install '.[tensorflow]'" in hint


_ASK_FOR_A_GPU = """
from gpudiag.errors import FrameworkMissingError
from gpudiag.training.jobs.tensorflow.setup import use_devices
try:
    use_devices("cuda", 1)
except FrameworkMissingError as error:
    print(error)
    print(error.hint)
"""


def test_tensorflow_without_gpus_explains_why() -> None:
    done = subprocess.run(
        [tensorflow_python(), "-c", _ASK_FOR_A_GPU],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment(CUDA_VISIBLE_DEVICES="", PYTHONPATH=str(ROOT)),
    )
    what, hint = done.stdout.splitlines()
    assert re.search(r"TensorFlow \S+ (here was built without CUDA|cannot use the GPUs)", what), done.stderr
    assert "pip install 'tensorflow[and-cuda]'" in hint
