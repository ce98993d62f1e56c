"""Start the training processes of one node, and end all of them when one fails.

    python starter.py FRAMEWORK PROCESSES COMMAND...

Each process gets the variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, ...). Unlike
torchrun this program serves no store, which other users of the host could reach. Where there are several processes of
TensorFlow, each also gets `TF_CONFIG` with free ports of the loopback address, and one GPU of its own. The ranks that
failed are named at the end in the words that torchrun uses, but not those that were ended because of them: TensorFlow
catches SIGTERM, and what SIGKILL ended would look as if it had failed. The exit code is 1 then.

Needs nothing but the standard library, and is run as a file.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

#: How often it looks.
_EVERY_S = 0.05

#: How long processes have to leave by themselves after SIGTERM.
_GRACE_S = 5.0


def main(arguments: list[str]) -> int:
    """Run all processes to their end."""
    framework, count, command = arguments[0], int(arguments[1]), arguments[2:]
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(max(1, count))]
    of_framework = _of_tensorflow if framework == "tensorflow" else _of_pytorch
    processes = [
        subprocess.Popen(command, env={**os.environ, **_variables(rank, count), **of_framework(rank, count, addresses)})
        for rank in range(count)
    ]
    while True:
        some_run = any(process.poll() is None for process in processes)
        failed = [(rank, process) for rank, process in enumerate(processes) if process.poll() not in {None, 0}]
        if failed or not some_run or told:
            break
        time.sleep(_EVERY_S)
    if told:
        # The guard told the processes too. They save what was measured, and would die with this one.
        _leave(processes)
        return 1
    if failed:
        _end(processes)
    for rank, process in failed:
        who = f"  rank      : {rank} (local_rank: {rank})\n"
        sys.stdout.write(f"{who}  exitcode  : {process.returncode} (pid: {process.pid})\n")
    return 1 if failed else 0


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """One has failed. Those that fail because of it have a moment to say so first; they say more than a signal."""
    time.sleep(10 * _EVERY_S)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    _leave(processes)


def _leave(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for processes that are to end, and kill what has not."""
    until = time.monotonic() + _GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def _variables(rank: int, count: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
    }


def _of_pytorch(_rank: int, _count: int, addresses: list[str]) -> dict[str, str]:
    """Return what libraries look for to see that their processes have been started. Nobody serves at the address."""
    host, _, port = addresses[0].partition(":")
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "gpudiag",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _of_tensorflow(rank: int, count: int, addresses: list[str]) -> dict[str, str]:
    values = {}
    if count > 1:
        task = {"type": "worker", "index": rank}
        values["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            values["CUDA_VISIBLE_DEVICES"] = str(rank)
        elif visible:
            values["CUDA_VISIBLE_DEVICES"] = visible.split(",")[rank]
    return values


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; another program could take one before TensorFlow does, which then fails."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
