"""Start the training processes of one node, and end all of them when one fails.

    python starter.py FRAMEWORK PROCESSES COMMAND...

Each process gets the variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, ...). Unlike
torchrun this program serves no store, which other users of the host could reach. If there are several TensorFlow
processes, each also gets `TF_CONFIG` with free ports of the loopback address, and one GPU. Failed ranks are named at
the end in torchrun's format, with exit code 1. Ranks that were ended because of these failures are not named:
TensorFlow catches SIGTERM, and a process ended by SIGKILL would look as if it had failed.

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
from contextlib import ExitStack

_POLL_S = 0.05
#: Time for processes to end by themselves after SIGTERM.
_GRACE_S = 5.0


def main(arguments: list[str]) -> int:
    """Run all processes to their end."""
    framework, count, command = arguments[0], int(arguments[1]), arguments[2:]
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(max(1, count))]
    variables = _tensorflow_variables if framework == "tensorflow" else _pytorch_variables
    processes = [
        subprocess.Popen(command, env={**os.environ, **_rank_variables(rank, count), **variables(rank, addresses)})
        for rank in range(count)
    ]
    while True:
        running = any(process.poll() is None for process in processes)
        failed = [(rank, process) for rank, process in enumerate(processes) if process.poll() not in {None, 0}]
        if failed or not running or signals:
            break
        time.sleep(_POLL_S)
    if signals:
        # The guard signalled the processes too. The processes save their measurements, and would die with this process.
        _leave(processes)
        return 1
    if failed:
        _end(processes)
    for rank, process in failed:
        who = f"  rank      : {rank} (local_rank: {rank})\n"
        sys.stdout.write(f"{who}  exitcode  : {process.returncode} (pid: {process.pid})\n")
    return 1 if failed else 0


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the other processes after a failure, but first give them time to report failures that follow from it."""
    time.sleep(10 * _POLL_S)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    _leave(processes)


def _leave(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for the processes to end, and kill those that do not end."""
    until = time.monotonic() + _GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def _rank_variables(rank: int, count: int) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return {name: str(number) for name, number in {**numbers, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}.items()}


def _pytorch_variables(_rank: int, addresses: list[str]) -> dict[str, str]:
    """Return variables by which libraries recognize that a launcher started them. Nobody serves at the address."""
    host, _, port = addresses[0].partition(":")
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "gpudiag",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _tensorflow_variables(rank: int, addresses: list[str]) -> dict[str, str]:
    if len(addresses) == 1:
        return {}
    task = {"type": "worker", "index": rank}
    values = {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        values["CUDA_VISIBLE_DEVICES"] = str(rank)
    elif visible:
        values["CUDA_VISIBLE_DEVICES"] = visible.split(",")[rank]
    return values


def _free_ports(count: int) -> list[int]:
    """Return ports without a listener; if another program takes one before TensorFlow does, TensorFlow fails."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
