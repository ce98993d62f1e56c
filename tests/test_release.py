"""Test that a release has one version, publishes without secrets, and that tickets ask for `gpudiag doctor`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def workflow(name: str) -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))


def test_changelog_begins_with_the_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first is not None
    assert first[1] == VERSION


def test_version_is_in_no_source_file() -> None:
    sources = [*(ROOT / "gpudiag").rglob("*.py"), ROOT / "Makefile", ROOT / "Dockerfile"]
    sources += (ROOT / ".github").rglob("*.yml")
    literal = re.compile(rf"[\"'= v]{re.escape(VERSION)}\b(?!\.)(?! publishes)")
    assert [str(path) for path in sources if literal.search(path.read_text(encoding="utf-8"))] == []


def test_only_the_publishing_job_has_an_identity() -> None:
    release = workflow("release")
    assert release["permissions"] == {"contents": "read"}
    identities = {name for name, job in release["jobs"].items() if "id-token" in job.get("permissions", {})}
    assert identities == {"publish"}
    assert release["jobs"]["publish"]["environment"] == "pypi"
    uses = [step.get("uses", "") for step in release["jobs"]["publish"]["steps"]]
    assert not any(name.startswith("actions/checkout") for name in uses), (
        "the job with the identity runs no code of ours"
    )


def test_workflows_use_no_secrets_and_run_the_ci_script() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert "secrets." not in path.read_text(encoding="utf-8")
    runs = [step.get("run", "") for step in workflow("ci")["jobs"]["checks"]["steps"]]
    assert "bash .ci/run" in runs
    assert "make release" in [step.get("run", "") for step in workflow("release")["jobs"]["build"]["steps"]]


def test_tickets_ask_for_the_checks_of_the_machine() -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "problem.yml").read_text(encoding="utf-8"))
    first = form["body"][0]
    assert "gpudiag doctor --json" in first["attributes"]["label"]
    assert first["validations"]["required"] is True


def test_image_has_no_privileges() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"]
