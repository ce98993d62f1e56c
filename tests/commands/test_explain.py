"""Test `gpudiag explain`: every code has documentation, and mistyped words get close matches."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from rich.cells import cell_len

from gpudiag.app.explain import causes, explain, explanations
from gpudiag.commands.command_line.completion import complete_values
from gpudiag.commands.explain import explain as command
from gpudiag.errors import UsageError
from gpudiag.model.analysis import FINDING_CODES, VALIDITY_CODES
from gpudiag.model.explanation import Explanation, ExplanationList
from tests.cli_process import in_this_process


@pytest.mark.parametrize("code", [*FINDING_CODES, *VALIDITY_CODES])
def test_every_code_has_a_meaning_and_advice(code: str) -> None:
    explanation = explain(code)
    assert explanation.kind == ("finding" if code in FINDING_CODES else "warning")
    assert explanation.title.endswith(".")
    assert all(entry.advice for entry in explanation.advice)
    assert explanation.advice
    assert (len(explanation.fires) > 0) == (code in FINDING_CODES)
    words = msgspec.json.encode(explanation).decode()
    assert "](" not in words, "a link of Markdown remains"


def test_a_cause_selects_its_advice() -> None:
    assert {"input", "compute", "stall"} <= set(causes("straggler"))
    (chosen,) = explain("straggler", "input").advice
    assert chosen.cause == "input"
    assert any("prefetch_factor" in line for line in chosen.advice)


def test_cause_of_several_words_needs_no_quotes() -> None:
    result = in_this_process("explain", "slow-copy", "pageable", "memory")
    assert result.returncode == 0
    assert "What to do if the cause is pageable memory" in result.stdout
    assert "not hidden behind compute" not in result.stdout


def test_code_of_a_rule_is_explained_by_its_family() -> None:
    assert explain("cannot-tell:straggler") == explain("cannot-tell")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ("stragler",),
            "there is no finding or warning 'stragler'",
            "Did you mean 'straggler'? There are: input-bound, ",
        ),
        (("straggler", "inptu"), "the page of straggler has no cause 'inptu'", "Did you mean 'input'? There are: "),
        (
            ("few-steps", "x"),
            "the page of few-steps has no cause 'x'",
            "Its page has no causes: gpudiag explain few-steps.",
        ),
    ],
)
def test_unknown_words_get_close_matches(words: tuple[str, ...], message: str, hint: str) -> None:
    result = in_this_process("explain", *words)
    assert (result.returncode, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first == f"gpudiag: {message}"
    assert second.startswith(f"  hint: {hint}")


def test_json_has_its_schema() -> None:
    one = msgspec.json.decode(in_this_process("explain", "host-stall", "--json").stdout, type=Explanation)
    assert (one.schema, one) == ("gpudiag/explanation/1", explain("host-stall"))
    every = msgspec.json.decode(in_this_process("explain", "--json").stdout, type=ExplanationList)
    assert every == explanations()
    assert (*every.findings, *every.warnings) == (*FINDING_CODES, *VALIDITY_CODES)


@pytest.mark.parametrize("width", [40, 60, 100])
@pytest.mark.parametrize("words", [(), ("straggler",), ("mixed-runs",), ("degraded-link",)])
def test_text_fits_the_terminal(width: int, words: tuple[str, ...]) -> None:
    result = in_this_process("explain", *words, "--width", str(width))
    assert result.returncode == 0
    assert max(map(cell_len, result.stdout.splitlines())) <= width


def test_codes_and_causes_are_completed() -> None:
    complete_values(command)
    hints = command.__annotations__
    code, cause = (hints[name].__metadata__[0].autocompletion for name in ("code", "cause"))
    assert code(SimpleNamespace(params={}), "strag") == ["straggler"]
    assert "few-steps" in code(SimpleNamespace(params={}), "")
    assert cause(SimpleNamespace(params={"code": "straggler"}), "in") == ["input"]
    assert cause(SimpleNamespace(params={"code": "nothing"}), "") == []


def test_missing_pages_are_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudiag.__file__", "/nowhere/gpudiag/__init__.py")
    result = in_this_process("explain", "straggler")
    assert (result.returncode, result.stdout) == (5, "")
    assert "Install gpudiag again" in result.stderr


def test_usage_error_names_the_code() -> None:
    with pytest.raises(UsageError, match="no finding or warning 'x'"):
        explain("x")


def test_cause_without_example_gives_the_advice_for_the_others() -> None:
    """Reports print `straggler … launch`, for which no example exists."""
    explanation = explain("straggler", "launch")
    assert explanation.advice == explain("straggler").advice
    assert explanation.paragraphs[-1].startswith("No example has the cause 'launch'")
