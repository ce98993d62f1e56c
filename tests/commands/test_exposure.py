"""Test that the attempts of a second account succeed on open targets, so that failed attempts mean protection.

The tests of `profile`, `scale`, `recommend`, `bandwidth` and `selftest` watch one of their runs (`tests/exposure.py`).
The second account reaches no file, and no listener other than gloo.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli_process import SECONDS
from tests.exposure import answering, public_directory, reachable
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
    """Each attempt succeeds on an open target; otherwise a failed attempt would prove nothing."""
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
