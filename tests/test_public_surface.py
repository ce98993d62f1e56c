"""Test the public names, commands, exit codes and schemas; a change of this file needs an entry in CHANGELOG.md."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import gpudiag
from gpudiag import commands, errors
from gpudiag.commands import main as cli
from gpudiag.model import analysis, facts, run
from tests.cli_process import SECONDS, environment

FRAMEWORKS = ("torch", "tensorflow", "pandas")
SOME_TRACES = Path(__file__).parent / "traces" / "tiny"
ONE_RANK = Path(__file__).parent / "traces" / "public" / "kineto_2021_resnet50_workers4.pt.trace.json.gz"


def test_commands_are_pinned() -> None:
    measuring = "topology doctor bandwidth profile analyze explain digest gather recommend scale"
    designed = f"{measuring} report view export log mcp diff table selftest"
    assert tuple(commands.SUMMARIES) == tuple(designed.split())


def test_public_names_are_pinned() -> None:
    callbacks = "KerasCallback LightningCallback TransformersCallback"
    names = f"CpuReduceHook {callbacks} __version__ analyze compare load_facts profile range trace_handler"
    assert sorted(gpudiag.__all__) == names.split()
    assert dir(gpudiag) == sorted(gpudiag.__all__)


def error_kinds() -> list[type[errors.GpudiagError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.GpudiagError)]


def test_exit_codes_are_pinned() -> None:
    assert {kind.__name__: kind.exit_code for kind in error_kinds()} == {
        "GpudiagError": 5,
        "UsageError": 2,
        "HardwareMissingError": 3,
        "UnreadableInputError": 4,
        "NotATraceError": 4,
        "TooLargeError": 4,
        "WorkerFailedError": 5,
        "FrameworkMissingError": 5,
        "MissingLibraryError": 2,
    }
    assert (cli.INTERRUPTED, cli.READER_GONE) == (130, 141)


def test_every_error_has_a_hint() -> None:
    for kind in error_kinds():
        assert kind("what is wrong").hint.endswith(".")


def test_schema_versions_are_pinned() -> None:
    assert analysis.ANALYSIS_SCHEMA == "gpudiag/analysis/1"
    assert facts.FACTS_SCHEMA == "gpudiag/facts/1"
    assert run.RUN_SCHEMA == "gpudiag/run/1"


def test_buckets_and_finding_codes_are_pinned() -> None:
    assert analysis.BUCKETS == (
        "compute",
        "communication_transfer",
        "communication_wait",
        "copy",
        "input",
        "sync",
        "launch",
        "idle",
    )
    assert analysis.SEVERITIES == ("critical", "warning", "info")
    assert not set(analysis.FINDING_CODES) & set(analysis.VALIDITY_CODES)


def test_fail_on_knows_every_code_in_the_source() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(gpudiag.__file__).parent.rglob("*.py")]
    warnings = {code for source in sources for code in re.findall(r'Validity\(\s*code="([^"]+)"', source)}
    rule = re.compile(r'^    code(?:: .*)? = "([^"]+)"', re.MULTILINE)
    findings = {code for source in sources for code in rule.findall(source)}
    assert warnings
    assert findings
    assert warnings <= set(analysis.VALIDITY_CODES)
    assert findings <= set(analysis.FINDING_CODES)


@pytest.mark.parametrize(
    "statement",
    [
        "import gpudiag",
        "import gpudiag.app.analyze",
        "import gpudiag.app.analyze, gpudiag.analysis.timeline.build, gpudiag.analysis.diagnosis.engine",
        "import gpudiag.app.profile.profile, gpudiag.app.recommend.recommend, gpudiag.app.scale.scale",
        "import gpudiag.app.selftest.selftest, gpudiag.app.bandwidth, gpudiag.app.table, gpudiag.app.view",
        "import gpudiag.training.loop.session, gpudiag.training.launch.launcher",
        "import gpudiag.report.terminal.report",
        f"import gpudiag; gpudiag.analyze({str(SOME_TRACES)!r})",
        "from gpudiag.commands import main as cli; cli.main(['analyze', '--help'])",
        "from gpudiag.commands import main as cli; cli.main(['--help'])",
    ],
)
@pytest.mark.processes
def test_no_framework_is_imported_before_training(statement: str) -> None:
    check = f"import json, sys\n{statement}\nprint(json.dumps(sorted(set(sys.modules) & {set(FRAMEWORKS)!r})))"
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, env=environment(), timeout=SECONDS, check=True
    )
    assert json.loads(result.stdout.splitlines()[-1]) == []


@pytest.mark.processes
def test_help_imports_no_slow_module() -> None:
    check = "import sys; from gpudiag.commands import main as cli; cli.main(['--help']); print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, env=environment(), timeout=SECONDS, check=True
    )
    assert not {"numpy", "msgspec", "rich.console", *FRAMEWORKS} & set(result.stdout.split())


@pytest.mark.processes
def test_analysing_one_rank_loads_at_most_123_modules_of_gpudiag() -> None:
    check = f"""
import contextlib, io, sys
from gpudiag.commands import main as cli
with contextlib.redirect_stdout(io.StringIO()):
    code = cli.main(["analyze", "--json", {str(ONE_RANK)!r}])
print(code, *sorted(name for name in sys.modules if name.partition(".")[0] == "gpudiag"))
"""
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, env=environment(), timeout=SECONDS, check=True
    )
    code, *loaded = result.stdout.split()
    assert (code, "gpudiag.analysis.diagnosis.engine" in loaded) == ("0", True)
    assert len(loaded) <= 123, loaded


@pytest.mark.processes
def test_help_is_a_small_multiple_of_an_empty_python() -> None:
    """The limit is a multiple of the interpreter's start time, because machines differ."""

    def spent() -> float:
        """Return the CPU time of child processes, which does not depend on the load of the machine."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def least(*words: str) -> float:
        """Return the least CPU time in seconds of three runs of Python with arguments `words`."""
        times = []
        for _ in range(3):
            before = spent()
            subprocess.run(
                [sys.executable, *words], capture_output=True, env=environment(), timeout=SECONDS, check=True
            )
            times.append(spent() - before)
        return min(times)

    assert least("-m", "gpudiag", "--help") < 25 * least("-c", "import typing")
