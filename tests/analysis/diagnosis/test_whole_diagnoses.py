"""Compare complete diagnoses of each rule's examples, recorded machines, random jobs and small real traces.

The expected diagnoses are in `tests/golden/diagnoses`.

Other tests check the required results; this test shows every other effect of a change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpudiag.analysis.diagnosis.documented import DOCUMENTED_RULES
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.hardware import HARDWARE_RULES, examine_facts
from gpudiag.analysis.diagnosis.significance import Significance
from gpudiag.analysis.diagnosis.simulation.components import COMPONENTS, amount
from gpudiag.app.analyze import analyze_with_step
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.random_jobs.analysed import analysed, recorded
from tests.analysis.diagnosis.random_jobs.recipe import ALL_KINDS, draw
from tests.analysis.diagnosis.rule_examples import every_example, examples_by_code
from tests.machines import NAMES, machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.analysis.diagnosis.hardware.rule import FactsRule
    from gpudiag.analysis.diagnosis.rules.rule import Rule

TRACES = Path(__file__).parents[2] / "traces"
JOBS = sorted({path.parent for path in TRACES.glob("*/*.json.gz")} - {TRACES / "public"})
ALONE = sorted([*TRACES.glob("public/*.json.gz"), *TRACES.glob("tensorflow*/*.xplane.pb.gz")])
#: Maximum number of characters in a line of JSON.
LINE = 320
LEFT_OUT = {"advice", "source", "portions", "schema", "modules", "simulated_ranks"}
"""Fields that are left out. Advice is on the pages of the findings; no job has marked modules or over 64 ranks."""


def name_of(path: Path) -> str:
    return path.name.partition(".")[0]


def plain(value: Any) -> Any:
    """Convert to JSON types without `LEFT_OUT`, with six digits, because the last digits of sums differ by machine."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {str(key): plain(one) for key, one in value.items() if key not in LEFT_OUT}
        case list() | tuple():
            return [plain(item) for item in value]
    return value


def text(value: Any) -> str:
    return written(plain(msgspec.to_builtins(value))) + "\n"


def written(value: Any, indent: str = "") -> str:
    """Write JSON; an object that fits into one line takes one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= LINE or not isinstance(value, dict | list):
        return line
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {written(one, inner)}" for key, one in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + written(item, inner) for item in value) + f"\n{indent}]"


@pytest.mark.parametrize("rule", DOCUMENTED_RULES, ids=lambda rule: rule.code)
def test_diagnoses_of_rule_examples_are_unchanged(rule: type[Rule], golden: Callable[[str, str], None]) -> None:
    said = {}
    for what, job in every_example(rule.code):
        case = case_of(job.traces())
        said[what] = {"validity": case.timeline.validity, "diagnosis": diagnose(case)}
    golden(f"diagnoses/{rule.code}.json", text(said))


@pytest.mark.parametrize("rule", HARDWARE_RULES, ids=lambda rule: rule.code)
def test_diagnoses_of_example_machines_are_unchanged(rule: FactsRule, golden: Callable[[str, str], None]) -> None:
    golden(
        f"diagnoses/{rule.code}.json",
        text({what: rule.examine(facts) for what, facts in examples_by_code(rule.code).FIRES}),
    )


@pytest.mark.parametrize("name", NAMES)
def test_diagnoses_of_recorded_machines_are_unchanged(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"diagnoses/machine-{name}.json", text(examine_facts(machine(name))))


@pytest.mark.long
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_diagnoses_of_random_jobs_are_unchanged(kind: str, golden: Callable[[str, str], None]) -> None:
    said = {}
    for seed in (7, 8, 9):
        case = recorded(draw(seed, kind))
        what_if = case.what_if
        assert what_if is not None
        said[seed] = {
            "analysis": analysed(case),
            "replayed_ms": what_if.simulated_ms,
            "corrected_ms": what_if.corrected_ms,
            "steps_ms": what_if.steps_ms([what_if.corrected])[0].tolist(),
            "per_event_ns": what_if.per_event_ns,
            "chance_ms": Significance(case, what_if).chance_ms,
            "parts_ms": {part: float(amount(what_if, what_if.corrected, part).sum() / 1e6) for part in COMPONENTS},
        }
    golden(f"diagnoses/random-{kind}.json", text(said))


@pytest.mark.long
@pytest.mark.parametrize("path", [*JOBS, *ALONE], ids=name_of)
def test_diagnoses_of_real_traces_are_unchanged(path: Path, golden: Callable[[str, str], None]) -> None:
    analysis, view = analyze_with_step([path])
    assert view is not None
    drawn = {
        "step": view.step,
        "others": [other.step for other in view.others],
        "waits": view.waits,
        "tracks": {
            f"rank {rank.rank}, {track.label}": (
                len(track.start),
                sum(track.start),
                sum(track.length),
                max(track.depth, default=0),
            )
            for rank in view.ranks
            for track in rank.tracks
        },
    }
    said = text({"analysis": analysis, "drawn": drawn}).replace(f"{path.parent}/", "")
    golden(f"diagnoses/{name_of(path)}.json", said)
