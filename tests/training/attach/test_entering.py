"""Test how gpudiag enters a command's processes: with any interpreter, and however the program imports PyTorch."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from gpudiag.app.analyze import analyze_run
from tests.training.attach.attached import Attach, whole

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("attach")]


@pytest.fixture
def attach(attach: Attach) -> Attach:
    """Run commands as separate processes, which import PyTorch."""
    return functools.partial(attach, separate=True)


SCRIPTS = str(Path(__file__).with_name("scripts.py"))

#: The job's `sitecustomize` provides PyTorch, but none of the packages that gpudiag needs.
ONLY_PYTORCH = """
import sys
class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"msgspec", "nvtx", "rich", "typer", "pynvml", "jinja2"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Lacks())
"""

STEPS = f"import runpy, sys; sys.argv = ['', '40', 'plain']; runpy.run_path({SCRIPTS!r}, run_name='__main__')"

#: This program searches for PyTorch before importing it, as `import transformers` does.
LOOKS_FIRST = f"""
import importlib.util
assert importlib.util.find_spec("torch") is not None
assert importlib.util.find_spec("torch").origin.endswith("__init__.py")
{STEPS}
"""

#: This script's first import of PyTorch fails while PyTorch executes.
FAILS_FIRST = f"""
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.version":
            raise ImportError("not yet")
sys.meta_path.insert(0, Broken())
try:
    import torch
except ImportError:
    del sys.meta_path[0]
for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
    del sys.modules[name]
{STEPS}
"""


@pytest.mark.parametrize("kind", ["plain", pytest.param("lbfgs", marks=pytest.mark.measured)])
@pytest.mark.apart
def test_command_is_measured_in_an_interpreter_with_pytorch_alone(
    kind: str, attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ONLY_PYTORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    code, run, out, err = attach(SCRIPTS, "40", kind)
    assert (code, run.status, run.error, len(out.split())) == (0, "complete", None, 80), err
    assert [whole(rank) for rank in run.ranks] == [True]
    assert analyze_run(tmp_path / "run").steps.analysed == 4


@pytest.mark.measured
def test_loop_without_optimizer_is_recorded_with_pytorch_alone(
    attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ONLY_PYTORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    code, run, _, err = attach(SCRIPTS, "600", "inference", patience_s=2.0, stop=True)
    assert (code, run.status, run.steps_found and run.steps_found.by) == (0, "complete", "time"), err


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(LOOKS_FIRST, id="looks first", marks=pytest.mark.apart),
        pytest.param(FAILS_FIRST, id="fails first", marks=pytest.mark.measured),
    ],
)
def test_program_may_search_for_pytorch_before_importing_it(program: str, attach: Attach) -> None:
    code, run, out, err = attach("-c", program)
    assert (code, run.status, run.error, len(out.split())) == (0, "complete", None, 80), err
    assert [whole(rank) for rank in run.ranks] == [True]


#: In this interpreter gpudiag cannot be imported, as with a Python version that is too old.
BREAKS_GPUDIAG = """
import sys
class Breaks:
    def find_spec(self, name, path=None, target=None):
        if name == "gpudiag.training.attach.entered":
            raise ImportError("cannot be loaded here")
sys.meta_path.insert(0, Breaks())
"""


def test_warning_names_interpreter_that_cannot_load_gpudiag(
    attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BREAKS_GPUDIAG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    code, run, out, _ = attach(SCRIPTS, "20", "plain", separate=False)
    assert (code, len(out.split())) == (0, 40)
    assert run.error is not None
    assert "gpudiag failed in your command, which continued: ImportError: cannot be loaded here (Python 3." in run.error


#: This program loads everything that a measured PyTorch process needs, and prints its gpudiag modules.
LISTS_MODULES = f"""
import atexit, sys
atexit.register(lambda: print(*sorted(name for name in sys.modules if name.partition(".")[0] == "gpudiag"), sep="\\n"))
{STEPS}
"""


def test_measured_process_loads_at_most_35_modules_of_gpudiag(attach: Attach) -> None:
    code, run, out, err = attach("-c", LISTS_MODULES)
    assert (code, run.error, [whole(rank) for rank in run.ranks]) == (0, None, [True]), err
    loaded = [line for line in out.splitlines() if line.startswith("gpudiag")]
    assert "gpudiag.training.attach.attached_session" in loaded
    assert len(loaded) <= 35, loaded
