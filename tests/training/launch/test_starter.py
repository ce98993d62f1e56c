"""Test the starter of TensorFlow processes: their environment variables, and the process named in a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpudiag.training.frameworks
from tests.cli_process import SECONDS

pytestmark = pytest.mark.processes

STARTER = Path(gpudiag.training.frameworks.__file__).with_name("starter.py")
WAITS_S = 30


def start(count: int, program: str, **changes: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-I", str(STARTER), "tensorflow", str(count), sys.executable, "-u", "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env={**kept, **changes}
    )


_TELL = """
import json, os
known = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "TF_CONFIG")
print(json.dumps({name: os.environ[name] for name in known if name in os.environ}) + "\\n", end="", flush=True)
"""


def test_each_process_gets_rank_peers_and_gpu() -> None:
    done = start(2, _TELL, CUDA_VISIBLE_DEVICES="3,1")
    assert done.returncode == 0, done.stderr
    answers = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: int(one["RANK"]))
    assert [answer["LOCAL_RANK"] for answer in answers] == ["0", "1"]
    assert [answer["CUDA_VISIBLE_DEVICES"] for answer in answers] == ["3", "1"]
    assert {answer["WORLD_SIZE"] for answer in answers} == {answer["LOCAL_WORLD_SIZE"] for answer in answers} == {"2"}
    configs = [json.loads(answer["TF_CONFIG"]) for answer in answers]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": rank} for rank in (0, 1)]
    addresses = configs[0]["cluster"]["worker"]
    assert configs[1]["cluster"]["worker"] == addresses
    assert len(set(addresses)) == 2
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_single_process_needs_no_cluster() -> None:
    answers = json.loads(start(1, _TELL).stdout)
    assert (answers["RANK"], answers["WORLD_SIZE"]) == ("0", "1")
    assert "TF_CONFIG" not in answers
    assert "CUDA_VISIBLE_DEVICES" not in answers


def test_empty_visible_devices_stay_empty() -> None:
    answers = [json.loads(line) for line in start(2, _TELL, CUDA_VISIBLE_DEVICES="").stdout.splitlines()]
    assert [answer["CUDA_VISIBLE_DEVICES"] for answer in answers] == ["", ""]


#: Rank 0 ignores SIGTERM, as TensorFlow's preemption notifier does.
_ONE_CRASHES = f"""
import os, signal, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep({WAITS_S})
time.sleep(0.5)
os.abort()
"""


def test_crashed_process_is_named_rather_than_terminated_ones() -> None:
    done = start(2, _ONE_CRASHES)
    assert done.returncode == 1
    assert "rank      : 1 (local_rank: 1)\n  exitcode  : -6 " in done.stdout
    assert "rank      : 0" not in done.stdout
