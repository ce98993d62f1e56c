"""`gpudiag doctor`: check for obstacles to a job before it runs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from gpudiag import __version__
from gpudiag.analysis.checkup import JobSetting, run_checks
from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.errors import GpudiagError
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.inventory.host.gather import gather_host
from gpudiag.machine.surroundings.cupti import find_cupti
from gpudiag.machine.surroundings.peer_copies import copy_between_gpus
from gpudiag.machine.surroundings.permissions import read_permissions, with_reasons
from gpudiag.machine.surroundings.watchdog import Reading
from gpudiag.model.checkup import Checkup
from gpudiag.model.checkup.surroundings import PeerCopiesSeen, PythonSeen, Surroundings
from gpudiag.model.facts import Facts, Host
from gpudiag.model.sanitize import sanitize
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.launch.interpreter import inspect_interpreter
from gpudiag.training.own_program import own_program

Value = TypeVar("Value")

DEFAULT_LIMIT_S = 20.0
#: Additional seconds for readings that end their own child process after `limit_s`.
_GRACE_S = 2.0


class DoctorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to check.

    Attributes:
        python: the interpreter of the training processes.
        framework: name of its framework.
        ranks: training processes on this machine; None for one per visible GPU, or two without GPUs.
        copies: whether to copy between GPUs; this is the only check that uses GPUs.
        limit_s: time limit of each reading in seconds.
        root: "/" for this machine, or a recorded tree of /proc, /sys, /dev and /etc.
    """

    python: str = sys.executable
    framework: str = "pytorch"
    ranks: int | None = None
    copies: bool = True
    limit_s: float = DEFAULT_LIMIT_S
    root: Path = Path("/")


def doctor(options: DoctorOptions, *, inventory: Callable[[], Facts] | None = None) -> Checkup:
    """Return all checks, after at most about 4 * `limit_s`. Obstacles and failed readings raise no exceptions.

    Args:
        options: what to check.
        inventory: called instead of reading GPUs and host; None to read them.
    """
    began = time.perf_counter()
    limit_s, reasons = options.limit_s, dict[str, str]()  # name of a reading without value → reason
    # A reading runs in a thread from its creation on, so that these three readings run at the same time.
    machine = Reading("the NVIDIA driver", inventory or _inventory_reader(options), limit_s + _GRACE_S)
    interpreter = Reading("the interpreter", lambda: _interpreter(options), limit_s)
    profiler = Reading("CUPTI", lambda: find_cupti(options.python, limit_s), limit_s + _GRACE_S)
    facts = _value_of(machine, "inventory", reasons)
    python = _value_of(interpreter, "python", reasons)
    if facts is None:
        facts = _host_alone(options, reasons)
    driver = facts.host.driver
    permissions = _value_of(
        Reading("/proc", lambda: read_permissions(options.root, driver), limit_s), "profiling_restricted", reasons
    )
    cupti = _value_of(profiler, "cupti", reasons)
    peers: PeerCopiesSeen | None = None
    if options.copies and sum(gpu.visible for gpu in facts.gpus) > 1:
        facts, peers = _copies(facts, options, reasons)
    elif not options.copies:
        reasons["peers"] = "--no-copies leaves the copies out"
    facts = msgspec.structs.replace(facts, findings=examine_facts(facts))
    surroundings = with_reasons(permissions or Surroundings(), reasons)
    surroundings = msgspec.structs.replace(surroundings, python=python, cupti=cupti, peers=peers)
    return _without_home(judge(facts, surroundings, options.ranks, seconds=time.perf_counter() - began))


def _value_of(reading: Reading[Value], name: str, reasons: dict[str, str]) -> Value | None:
    """Return the value of a reading. If it has no value, return None and set `reasons[name]`."""
    value, reason = reading.result()
    if reason is not None:
        reasons[name] = reason
    return value


def judge(facts: Facts, surroundings: Surroundings, ranks: int | None = None, *, seconds: float = 0.0) -> Checkup:
    """Check the facts and readings of this or another machine.

    `ranks` is None for one rank per visible GPU, or two without GPUs. `seconds` is how long the readings took.
    """
    visible = sum(gpu.visible for gpu in facts.gpus)
    setting = JobSetting(facts=facts, surroundings=surroundings, ranks=ranks or visible or 2)
    checkup = Checkup(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        seconds=round(seconds, 3),
        summary=_summary(setting),
        checks=run_checks(setting),
    )
    return msgspec.convert(sanitize(msgspec.to_builtins(checkup)), Checkup)


def _without_home(checkup: Checkup) -> Checkup:
    """Replace the home directory, which has the user's name, by `~`."""
    home = str(Path.home())
    if home == "/":
        return checkup
    # [1:-1] drops the quotes, because the home directory is only the beginning of a path.
    text = msgspec.json.encode(checkup).replace(msgspec.json.encode(home)[1:-1], b"~")
    return msgspec.json.decode(text, type=Checkup)


def _inventory_reader(options: DoctorOptions) -> Callable[[], Facts]:
    """Return a function that reads the machine in a child process, because a broken GPU can block its reader."""
    if str(options.root) != "/":
        return lambda: gather_inventory(root=options.root)
    command = own_program("gpudiag.__main__", "topology", "--json")
    return lambda: msgspec.json.decode(
        subprocess.run(command, capture_output=True, timeout=options.limit_s, check=True).stdout, type=Facts
    )


def _host_alone(options: DoctorOptions, reasons: dict[str, str]) -> Facts:
    """Return the facts of the host alone, read from files, for a machine whose driver does not answer."""
    host = _value_of(
        Reading("/proc and /sys", lambda: gather_host(options.root, os.environ), options.limit_s), "host", reasons
    )
    return Facts(host=host or Host(reasons={"gpus": reasons["inventory"]}))


def _interpreter(options: DoctorOptions) -> PythonSeen:
    """Return the versions of the interpreter and its framework, or the problem with a hint."""
    title = framework_named(options.framework).title
    try:
        interpreter = inspect_interpreter(options.python, options.framework)
    except GpudiagError as error:
        # If only the framework is missing, the message has the interpreter's version.
        _, _, version = str(error).partition("(Python ")
        return PythonSeen(
            path=options.python,
            framework_title=title,
            version=version.partition(")")[0] or None,
            problem=str(error),
            hint=error.hint,
        )
    return PythonSeen(
        path=interpreter.path,
        framework_title=title,
        version=interpreter.version,
        framework=interpreter.framework,
        cuda=interpreter.cuda,
    )


def _copies(facts: Facts, options: DoctorOptions, reasons: dict[str, str]) -> tuple[Facts, PeerCopiesSeen | None]:
    """Return the facts with measured copies, and the result of the copies; (`facts`, None) if that fails."""
    # Loading and copying have a time limit each.
    limit_s = 2 * options.limit_s + _GRACE_S
    copied = _value_of(Reading("copies", lambda: copy_between_gpus(facts, options.limit_s), limit_s), "peers", reasons)
    return copied or (facts, None)


def _summary(setting: JobSetting) -> dict[str, str]:
    """Return versions and models, without names of host and user."""
    host, python = setting.host, setting.surroundings.python
    gpus = [gpu.name for gpu in setting.facts.gpus]
    known = {
        "gpudiag": __version__,
        "system": " ".join(filter(None, (host.os, host.kernel, platform.machine()))),
        "python": python.version if python else None,
        "framework": f"{python.framework_title} {python.framework}" if python and python.framework else None,
        "framework_cuda": python.cuda if python else None,
        "driver": host.driver,
        "driver_cuda": host.cuda_driver,
        "gpus": ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)) or "none",
        "cpu": host.cpu,
        "ranks": str(setting.ranks),
    }
    return {name: value for name, value in known.items() if value}
