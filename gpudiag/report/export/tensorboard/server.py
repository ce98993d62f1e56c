"""TensorBoard as a process of its own: started, waited for until it serves, and checked for its profile plugin."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpudiag.errors import FrameworkMissingError, UsageError, WorkerFailedError

#: Seconds until TensorBoard serves: it imports much, from a cold disk.
_PATIENCE_S = 120.0
_SERVE = Path(__file__).with_name("serve.py")
_INSTALL = "Install it (in a clone: pip install '.[tensorboard]'), or name an interpreter that has it with --python."
#: What the interpreter is asked: does it have these, and which versions?
_ASK = """
import sys
del sys.path[0]  # the current directory, whose modules are not Python's own
import importlib.metadata, importlib.util, json
versions = {}
for module, packages in {"tensorboard": ("tensorboard",), "xprof": ("xprof",), "tensorboard_plugin_profile":
        ("tensorboard-plugin-profile",)}.items():
    if importlib.util.find_spec(module) is not None:
        for package in packages:
            try:
                versions[module] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                versions[module] = "of unknown version"
print(json.dumps(versions))
"""


def check_interpreter(python: str) -> str:
    """What this interpreter would serve with, in words: `TensorBoard 2.21.0 with xprof 2.24.2`.

    Raises:
        FrameworkMissingError: it has no TensorBoard or no profile plugin, or is no Python.
    """
    try:
        answer = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=True)
        versions: dict[str, str] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise FrameworkMissingError(f"{python} is no Python that runs ({error})", "Check --python.") from error
    if "tensorboard" not in versions:
        raise FrameworkMissingError(f"{python} has no TensorBoard", _INSTALL)
    plugins = [name for name in ("xprof", "tensorboard_plugin_profile") if name in versions]
    if not plugins:
        raise FrameworkMissingError(
            f"{python} has TensorBoard {versions['tensorboard']} without the profile plugin",
            "Install it (pip install xprof), or name an interpreter that has it with --python.",
        )
    return f"TensorBoard {versions['tensorboard']} with {plugins[0]} {versions[plugins[0]]}"


def free_port(host: str, port: int) -> int:
    """The port to serve on: the one that was asked for, or any free one for 0.

    Raises:
        UsageError: it is taken, or the host is none of this machine's.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise UsageError(f"--host {host}: {error.strerror}", "Give an address of this machine.") from error
    except OSError as error:
        if error.errno is not None and "in use" in (error.strerror or ""):
            raise UsageError(
                f"port {port} of {host} is taken", "Choose another with --port, or 0 for any free one."
            ) from error
        raise UsageError(f"cannot serve on {host}, port {port}: {error.strerror}", "Choose others.") from error


@contextmanager
def serving(python: str, directory: Path, host: str, port: int, versions: str) -> Iterator[subprocess.Popen[bytes]]:
    """TensorBoard, serving `directory`; it ends with the context.

    Args:
        python: the interpreter that has it.
        directory: what to show.
        host: the address to bind to.
        port: a free port there.
        versions: what `check_interpreter` said, for messages.

    Raises:
        WorkerFailedError: it ended before it served, or did not serve in time.
        FrameworkMissingError: it serves, but did not load the profile plugin.
    """
    own = directory / ".tensorboard"
    own.mkdir()
    log = own / "log"
    command = [python, "-P", str(_SERVE), "--logdir", str(directory), "--host", host, "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--load_fast=false"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(own)},  # it leaves files behind when it is ended
        )
    try:
        _wait_until_it_serves(process, url_of(host, port), log, versions)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def url_of(host: str, port: int) -> str:
    """Where a browser on this machine finds it."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - told
    return f"http://{name}:{port}/"


def _wait_until_it_serves(process: subprocess.Popen[bytes], url: str, log: Path, versions: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise WorkerFailedError(
                f"{versions} ended with exit code {process.returncode}: {_last_line(log)}",
                "Their versions may not go together: pip install --upgrade tensorboard xprof.",
            )
        try:
            with urllib.request.urlopen(f"{url}data/plugins_listing", timeout=5) as answer:  # noqa: S310 - our own URL
                plugins = json.load(answer)
        except (OSError, ValueError, urllib.error.URLError):
            time.sleep(0.2)
            continue
        if "profile" not in plugins:
            raise FrameworkMissingError(
                f"{versions}: the plugin was not loaded, so their versions do not go together",
                "Upgrade both: pip install --upgrade tensorboard xprof.",
            )
        return
    raise WorkerFailedError(
        f"{versions} did not serve within {_PATIENCE_S:.0f} s: {_last_line(log)}", "Try again; a cold start is slow."
    )


def _last_line(log: Path) -> str:
    lines = log.read_bytes()[-4096:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
