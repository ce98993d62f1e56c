"""Test what a second account can access of running commands: no file, and no listener other than gloo.

`test_scale.py`, `test_recommend.py` and `app/selftest/test_selftest.py` test the same of the commands that they run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_process import SECONDS
from tests.exposure import answering, public_directory, reachable, run_watched
from tests.listeners import listening_sockets
from tests.other_user import as_another_user, needs_root

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes"), needs_root]

_SERVES_A_STORE = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def test_attempts_reach_a_tcp_store_and_open_files() -> None:
    """Each attempt succeeds on an open target. Otherwise a failure of the attempt would prove nothing."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVES_A_STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    sockets = listening_sockets(server.pid)
    assert {number for _, number in sockets} == {port}
    assert as_another_user(lambda: len(answering([("127.0.0.1", port)]))) == "1"
    server.communicate("", timeout=SECONDS)
    with public_directory() as place:
        (place / "open").write_text("")
        (place / "closed").write_text("")
        (place / "closed").chmod(0o600)
        everything = sorted(place.iterdir())
        assert as_another_user(lambda: reachable(everything)) == str([str(place / "open")])


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "trivial", "--devices", "2", "--warmup", "3", "--steps", "3", "--output", "out"),
        ("bandwidth", "--quick"),
    ],
    ids=lambda words: words[0],
)
def test_another_account_reaches_only_gloo(words: tuple[str, ...], tmp_path: Path) -> None:
    command = (sys.executable, "-P", "-m", "gpudiag", *words)
    watched = run_watched(*command, cwd=tmp_path, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    assert watched.result.returncode == 0, watched.result.stderr
    watched.check()
