"""What all tests share: golden files, and an environment in which no one's terminal settings matter."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parent / "golden"
TERMINAL_VARIABLES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM")


# A script's background job ignores SIGINT, and so would every program that the tests start within one and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ again instead of comparing")


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in TERMINAL_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a whole output with `tests/golden/<name>`; `pytest --update-golden` writes it instead."""

    def compare(name: str, output: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(output, encoding="utf-8")
            return
        assert path.is_file(), f"{path} is missing: run pytest --update-golden, and look at what it wrote"
        assert output == path.read_text(encoding="utf-8"), f"{name} differs: look, then pytest --update-golden"

    return compare
