"""Start the training processes of one node, and end all of them when one fails.

    python starter.py FRAMEWORK PROCESSES COMMAND...

Each process gets the variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, ...). Unlike
torchrun, this program serves no key-value store, because other users of the host could connect to the store. If there
are several TensorFlow processes, each also gets one GPU, and `TF_CONFIG` with free ports of the loopback address. When
ranks fail, the program ends the other ranks, prints the failed ranks in torchrun's format, and exits with code 1.

The program runs as a file, and imports only the standard library.
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
#: Seconds that processes have to exit after SIGTERM.
_GRACE_S = 5.0


def main(arguments: list[str]) -> int:
    """Start all processes and wait for them. Return the exit code: 1 if a rank failed or SIGTERM arrived, else 0."""
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
        # `launch.guard` has sent SIGTERM to the training processes too, which save their measurements before they exit.
        # If only this process got SIGTERM, the guard would kill them when this process exits.
        _leave(processes)
        return 1
    if failed:
        _end(processes)
    for rank, process in failed:
        who = f"  rank      : {rank} (local_rank: {rank})\n"
        sys.stdout.write(f"{who}  exitcode  : {process.returncode} (pid: {process.pid})\n")
    return 1 if failed else 0


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the running processes after a failure. First wait 0.5 s, in which each process can report its own failure."""
    time.sleep(10 * _POLL_S)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    _leave(processes)


def _leave(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait up to `_GRACE_S` for the processes to end, and kill the processes that still run."""
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
    """Return the variables from which libraries infer a start by torchrun. No server listens at MASTER_ADDR."""
    host, _, port = addresses[0].partition(":")
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "gpudiag",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _tensorflow_variables(rank: int, addresses: list[str]) -> dict[str, str]:
    """Return `TF_CONFIG`, and `CUDA_VISIBLE_DEVICES` with one GPU for this rank; empty for a job of one process."""
    if len(addresses) == 1:
        return {}
    task = {"type": "worker", "index": rank}
    values = {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        values["CUDA_VISIBLE_DEVICES"] = str(rank)
    elif visible:  # an empty value hides all GPUs
        values["CUDA_VISIBLE_DEVICES"] = visible.split(",")[rank]
    return values


def _free_ports(count: int) -> list[int]:
    """Return `count` ports of the loopback address that are free now. Another program might still take such a port."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
