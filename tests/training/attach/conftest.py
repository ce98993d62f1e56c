"""Provide the fixture `attach`: it runs a command under gpudiag in the test's run directory."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.training.attach.attached import Attach, attached


@pytest.fixture
def attach(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Attach:
    return functools.partial(attached, tmp_path / "run", capfd, monkeypatch)
