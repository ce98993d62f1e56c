"""Run a Python program, and its child programs, in a process forked from one that has imported PyTorch.

The program has the arguments, variables, import path and children that it would have as a separate process. Three
properties differ: PyTorch is imported already, the first program is a child of the forking process, and all programs
have the command line of the forking process. This module imports only the standard library, because programs must load
gpudiag themselves.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_PRINT_PATH = [sys.executable, "-I", "-c", "import json, sys; print(json.dumps(sys.path))"]
#: The import path of a new process, without the folder of its program.
_INSTALLED: list[str] = json.loads(subprocess.run(_PRINT_PATH, check=True, stdout=subprocess.PIPE).stdout)

#: A program's child programs: a list with one tree for each Python program that the program starts, in order.
Tree = list[Any]

_OPTIONS = {"-I", "-P", "-u"}


def become_first() -> None:
    """Fork a process for each program that the first program will start, and then run the first program, which the
    command-line argument describes."""
    task = json.loads(sys.argv[1])
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's background processes inherit that SIGQUIT is ignored
    _start_with([_Waiting(starts) for starts in task["starts"]])
    _run_task(task)


class _Waiting:
    """A process that waits until its parent starts its program.

    The process is forked before its parent's program runs, because the fork of a running program would continue that
    program.
    """

    def __init__(self, starts: Tree) -> None:
        reading, self._writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # With a copy of these pipes here, waiting processes would not notice that the parent has ended.
            os.close(self._writing)
            for pipe in _pipes:
                os.close(pipe)
            _pipes.clear()
            _start_with([_Waiting(each) for each in starts])
            _run_from(reading)
            raise SystemExit(0)
        os.close(reading)
        _pipes.append(self._writing)

    def start(self, command: list[str], options: Mapping[str, Any]) -> None:
        """Start a program with the options `env`, `start_new_session` and `stdout` (a file, also for errors)."""
        task: dict[str, Any] = {"command": command, "folder": str(Path.cwd())}
        task["env"] = dict(options.get("env", os.environ))
        task["session"] = options.get("start_new_session", False)
        task["out"] = str(Path(options["stdout"].name).absolute()) if "stdout" in options else None
        _pipes.remove(self._writing)
        with os.fdopen(self._writing, "wb") as file:
            file.write(json.dumps(task).encode())


#: Pipes of this process to waiting processes; when this process ends, the waiting processes end too.
_pipes: list[int] = []


def _run_from(pipe: int) -> None:
    """Wait for a program, and run it; return if the parent ends without starting a program."""
    with os.fdopen(pipe, "rb") as file:
        text = file.read()
    if text:
        task = json.loads(text)
        os.environ.clear()
        os.environ.update(task["env"])
        if task["out"] is not None:
            out = os.open(task["out"], os.O_WRONLY | os.O_APPEND)
            os.dup2(out, 1)
            os.dup2(out, 2)
        _run_task(task)


def _run_task(task: dict[str, Any]) -> None:
    if task["session"]:
        os.setsid()
    os.chdir(task["folder"])
    _run(task["command"])


class _Started(subprocess.Popen[bytes]):
    """A program that runs in a process of class `_Waiting`."""

    def __init__(self, command: list[str], process: _Waiting, options: Mapping[str, Any]) -> None:
        # These are the attributes that the methods of `Popen` read.
        self.args, self.pid, self.returncode = command, process.pid, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock, self._sigint_wait_secs = True, threading.Lock(), 0.25
        process.start(command, options)


def _start_with(processes: list[_Waiting]) -> None:
    """Let `subprocess.Popen` use `processes` for the next programs, except for programs whose output is read."""
    unused, separate = iter(processes), subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        process = None if options.get("stdout") == subprocess.PIPE else next(unused, None)
        return separate(command, **options) if process is None else _Started(command, process, options)

    if processes:
        subprocess.Popen = popen  # type: ignore[assignment, misc]


def _run(command: list[str]) -> None:
    """Run a command of the form python OPTION... [-c PROGRAM | -m MODULE | FILE] ARGUMENT... in this process.

    As in Python, `-I` ignores PYTHONPATH, and `-I` and `-P` omit the program's folder from the import path.
    """
    begin = next(at for at, word in enumerate(command) if at and word not in _OPTIONS)
    options, words = command[1:begin], command[begin:]
    folders = [] if "-I" in options else [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    _set_path(folders)
    if not {"-I", "-P"} & set(options):
        own = {"-m": str(Path.cwd()), "-c": ""}
        sys.path.insert(0, own.get(words[0], str(Path(words[0]).absolute().parent)))
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _set_path(folders: list[str]) -> None:
    """Set the import path of a new process, and run the `sitecustomize` of PYTHONPATH if there is one."""
    sys.path[:] = [*folders, *_INSTALLED]
    if importlib.machinery.PathFinder.find_spec("sitecustomize", folders) is not None:
        # gpudiag's `sitecustomize` acts when the program imports PyTorch.
        sys.meta_path.insert(0, _Imported(sys.modules.pop("torch")))
        importlib.import_module("sitecustomize")


class _Imported:
    """Import PyTorch, which this process has imported before, as if for the first time."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch, self._spec = torch, torch.__spec__

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of `torch`, and None for every other module."""
        if name != "torch" or self._spec is None:
            return None
        folders = self._spec.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name,
            self._spec.origin,
            loader=self,  # type: ignore[arg-type] # the methods below are those that are used
            submodule_search_locations=folders,
        )

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._torch

    def exec_module(self, module: ModuleType) -> None:
        """Restore `__spec__`; the module has been executed already."""
        module.__spec__ = self._spec
