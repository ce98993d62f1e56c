"""Start TensorBoard as a process, wait until it answers, and check that its profile plugin is loaded."""

from __future__ import annotations

import errno
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

#: Longest time in seconds until TensorBoard answers. Imports are slow if the imported files are not in memory.
_START_S = 120.0
_SERVE = Path(__file__).with_name("serve.py")
_INSTALL = "Install it (in a clone: pip install '.[tensorboard]'), or name an interpreter that has it with --python."
#: Program that prints the versions of TensorBoard and its profile plugin.
_ASK = """
import sys
del sys.path[0]  # the current directory, whose modules are not Python's own
import importlib.metadata, importlib.util, json
versions = {}
for module in ("tensorboard", "xprof", "tensorboard_plugin_profile"):
    if importlib.util.find_spec(module) is not None:
        try:
            versions[module] = importlib.metadata.version(module.replace("_", "-"))
        except importlib.metadata.PackageNotFoundError:
            versions[module] = "of unknown version"
print(json.dumps(versions))
"""


def check_interpreter(python: str) -> str:
    """Return the versions of TensorBoard and its plugin in an interpreter: `TensorBoard 2.21.0 with xprof 2.24.2`.

    Raises:
        FrameworkMissingError: the interpreter does not run, or has no TensorBoard or no profile plugin.
    """
    try:
        answer = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=True)
        versions: dict[str, str] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise FrameworkMissingError(
            f"{python} does not run as a Python interpreter ({error})", "Check --python."
        ) from error
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
    """Return `port` if it is free on the address `host`, or any free port for 0.

    Raises:
        UsageError: the port is in use, or the host is no address of this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # A port whose last connections have just ended counts as free, as it does for servers.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise UsageError(f"--host {host}: {error.strerror}", "Give an address of this machine.") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = "Choose another port with --port, or 0 for any free one."
            raise UsageError(f"port {port} of {host} is in use", hint) from error
        raise UsageError(
            f"cannot serve on {host}, port {port}: {error.strerror}", "Choose another --host or --port."
        ) from error


@contextmanager
def serving(python: str, directory: Path, host: str, port: int, versions: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run TensorBoard in the interpreter `python` on the log directory `directory`, within the block.

    Error messages begin with `versions`, the result of `check_interpreter`. Yields the process.

    Raises:
        WorkerFailedError: TensorBoard ended before it answered, or did not answer in time.
        FrameworkMissingError: TensorBoard answers, but did not load the profile plugin.
    """
    private = directory / ".tensorboard"
    private.mkdir()
    log = private / "log"
    # With -P, modules beside serve.py cannot shadow other modules of the same names. TensorBoard's data server is off,
    # because it is a second process, whose port serve.py does not guard.
    command = [python, "-P", str(_SERVE), "--logdir", str(directory), "--host", host, "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--load_fast=false"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(private)},  # TensorBoard leaves files behind when it is terminated
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
    """Return the URL for a browser on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}/"


def _wait_until_it_serves(process: subprocess.Popen[bytes], url: str, log: Path, versions: str) -> None:
    """Return when TensorBoard answers and has the profile plugin; raise the errors of `serving` otherwise."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise WorkerFailedError(
                f"{versions} ended with exit code {process.returncode}: {_last_line(log)}",
                "Their versions may be incompatible: pip install --upgrade tensorboard xprof.",
            )
        try:
            with urllib.request.urlopen(f"{url}data/plugins_listing", timeout=5) as answer:  # noqa: S310 - own server
                plugins = json.load(answer)
        except (OSError, ValueError, urllib.error.URLError):
            time.sleep(0.2)
            continue
        if "profile" not in plugins:
            raise FrameworkMissingError(
                f"{versions}: the plugin was not loaded because their versions are incompatible",
                "Upgrade both: pip install --upgrade tensorboard xprof.",
            )
        return
    raise WorkerFailedError(
        f"{versions} did not answer within {_START_S:.0f} s: {_last_line(log)}", "Try again; the first start is slow."
    )


def _last_line(log: Path) -> str:
    lines = log.read_bytes()[-4096:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "no output"
