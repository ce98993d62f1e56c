"""Provide shared fixtures: golden files, full recordings, and an environment independent of user settings."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.traces.pack import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from gpudiag.model.analysis import Analysis

GOLDEN = Path(__file__).parent / "golden"
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
WHOLE = Path(__file__).parent / "traces" / "whole"
TERMINAL_VARIABLES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM")


# A background job of a script ignores SIGINT, and pytest may run as such a job. A program that a test interrupts would
# inherit this setting.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The tests start many programs that import mostly the same modules. Some images set PYTHONDONTWRITEBYTECODE, which
# turns off cached bytecode. Then each program compiles the modules again, which takes as long as the rest of a short
# command.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# Two workers and their child processes share the cores. With one thread per core in each process, the threads of a
# small model spend most of their time waiting for each other. One thread per process reduces `test_unet3d.py` under
# load from 30 CPU seconds to 2.5.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# Objects imported during collection live until the end, so that garbage collections scan these objects without freeing
# any. Without garbage collections, test collection takes 3.9 instead of 6.9 CPU seconds, and the tests take an eighth
# less.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


# Deadlines per example fail at random on a loaded machine. `.ci/nightly` loads the profile `whole`.
settings.register_profile("whole", deadline=None)
settings.register_profile("usual", deadline=None, max_examples=25)
settings.load_profile("usual")

_programs: list[str] = []


def _note_programs(event: str, arguments: tuple[object, ...]) -> None:
    if event == "subprocess.Popen":
        _programs.append(str(arguments[1]))


sys.addaudithook(_note_programs)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ again instead of comparing")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add markers: `processes`, `long`, and xdist groups for tests that share recordings or module fixtures."""
    for item in items:
        # Tests with these markers start programs.
        if any(item.get_closest_marker(name) for name in ("xdist_group", "gpu", "multigpu")):
            item.add_marker("processes")
        asked = getattr(item, "fixturenames", ())
        if "whole_recording" in asked:
            item.add_marker("long")
        if "whole_recording" in asked or "analysis_of" in asked:
            # With a common group, a single worker analyses each recording once.
            item.add_marker(pytest.mark.xdist_group("recordings"))
        elif _shares_with_its_module(item) and not item.get_closest_marker("xdist_group"):
            # With a common group, a single worker runs the module's setup once.
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _shares_with_its_module(item: pytest.Item) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    return any(fixtures[-1].scope == "module" for fixtures in definitions)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    _programs.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test that starts a program without the marker `processes`, by which `make unit` excludes such tests."""
    result = yield
    if _programs and not item.get_closest_marker("processes"):
        pytest.fail(f"mark it with @pytest.mark.processes, as it starts {_programs[0]}")
    return result


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in TERMINAL_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that compares an output with `tests/golden/<name>`; `--update-golden` rewrites the file."""

    if f"rich=={version('rich')}\n" not in CONSTRAINTS.read_text(encoding="utf-8"):
        pytest.skip("another rich breaks lines elsewhere")

    def compare(name: str, output: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(output, encoding="utf-8")
            return
        assert path.is_file(), f"{path} is missing: run pytest --update-golden, and check the new file"
        assert output == path.read_text(encoding="utf-8"), (
            f"{name} differs: check the difference, then run pytest --update-golden"
        )

    return compare


@pytest.fixture(scope="session")
def whole_recording(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from the name of a recording in `tests/traces/whole` to its directory, unpacked once."""
    base = tmp_path_factory.getbasetemp()
    # Each worker of pytest-xdist has its own directory within one shared directory.
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "whole"

    def unpacked(name: str) -> Path:
        if not (shared / name).is_dir():
            mine = tmp_path_factory.mktemp("whole")
            unpack(WHOLE / f"{name}.npz", mine)
            (shared / name).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # a parallel worker has renamed its own directory first
                mine.rename(shared / name)
        return shared / name

    return unpacked


@pytest.fixture(scope="session")
def analysis_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Analysis]:
    """Return a function that analyses a trace, a directory of traces or a packed recording, each only once."""

    @cache
    def analysed(path: Path) -> Analysis:
        from gpudiag.app.analyze import analyze

        if path.suffix == ".npz":
            packed, path = path, tmp_path_factory.mktemp("packed")
            unpack(packed, path)
        return analyze([path])

    return analysed
