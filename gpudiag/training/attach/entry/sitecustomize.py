"""Load gpudiag into each Python process of a command under `gpudiag profile --`, after the process imports PyTorch.

This folder is first on PYTHONPATH, so that every Python process of the command runs this module at its start. The
module installs a finder for `torch`, removes its folder from `sys.path`, and runs the user's `sitecustomize`. Until
`torch` is imported, the module imports only modules that the interpreter has already loaded.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib would have to be imported


class _Torch:
    """Find `torch` with the other finders, and make its loader call `_enter` after it has executed `torch`.

    This finder remains installed until an import of `torch` has succeeded. An import may fail and be repeated, and a
    program may look for `torch` without importing it (`importlib.util.find_spec`).
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of `torch`; None for every other module."""
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                try:  # noqa: SIM105  # contextlib would have to be imported
                    _enter_after(spec.loader, self)
                except (AttributeError, TypeError):  # the loader accepts no attributes; the command is not measured
                    pass
                return spec
        return None

    def leave(self) -> None:
        """Stop looking for `torch`."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _enter_after(loader: Any, finder: _Torch) -> None:
    """Make the loader call `_enter` after it has executed `torch`."""
    if "exec_module" in loader.__dict__:  # a finder may return the same loader twice
        return
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        run(module)
        loader.__dict__.pop("exec_module", None)
        finder.leave()
        _enter()

    loader.exec_module = exec_module


def _enter() -> None:
    """Call `enter` of the gpudiag package that contains this file, even if another version of it is installed."""
    try:
        import importlib.util

        if "gpudiag" not in sys.modules:
            package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
            start = os.path.join(package, "__init__.py")  # noqa: PTH118
            spec = importlib.util.spec_from_file_location("gpudiag", start, submodule_search_locations=[package])
            if spec is None or spec.loader is None:
                return
            module = sys.modules["gpudiag"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        from gpudiag.training.attach.entered import enter

        enter()
    except Exception as error:  # noqa: BLE001  # the user's program runs even if the measurement fails
        _report_failure(error)


def _report_failure(error: Exception) -> None:
    """Write a `ProcessReport` without gpudiag's modules, because an old Python cannot import them."""
    version = ".".join(map(str, sys.version_info[:2]))
    report = {
        "pid": os.getpid(), "rank": int(os.environ.get("RANK") or 0), "world_size": 1, "stage": "failed", "calls": 0,
        "helper": False, "numbered": "RANK" in os.environ, "own_profiler": False, "distributed_optimizer": False,
        "error": f"{type(error).__name__}: {error} (Python {version}; gpudiag needs 3.10 or newer there)",
        "ended_s": None,
    }  # fmt: skip
    try:
        import json

        with open(os.path.join(_reports(), f"{os.getpid()}.json"), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123
            json.dump(report, file)
    except Exception:  # noqa: BLE001, S110
        pass


def _reports() -> str:
    """Return the directory for reports, read from the JSON in the environment variable; "" if it names none."""
    return os.environ["GPUDIAG_ATTACH"].partition('"reports": "')[2].partition('"')[0]


def _report_python() -> None:
    """Create the empty file `PYTHON_SEEN`, which shows that a Python process of the command ran this module."""
    try:
        if reports := _reports():
            os.close(os.open(os.path.join(reports, "python"), os.O_CREAT | os.O_WRONLY, 0o600))  # noqa: PTH118
    except OSError:
        pass  # the process runs on another host, or the disk is full


def _run_user_sitecustomize() -> None:
    """Import the user's own `sitecustomize` through the import system, because it may be a package."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]  # noqa: PTH100
    ours = sys.modules.pop(__name__, None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":  # a module that the user's `sitecustomize` imports is missing
            raise
        if ours is not None:
            sys.modules[__name__] = ours


# Run only if the interpreter imports this file as `sitecustomize`, not if a program imports it by another name.
if os.environ.get("GPUDIAG_ATTACH") and __name__ == "sitecustomize":
    if not any(type(finder).__name__ == "_Torch" for finder in sys.meta_path):
        sys.meta_path.insert(0, _Torch())  # `find_spec` is the only method of a finder that is called
        _report_python()
    _run_user_sitecustomize()
