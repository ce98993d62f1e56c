"""Test that hostile names in traces and records have no effect in terminal, page, table, spreadsheet or viewer."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.app.export import read_recorded
from gpudiag.model.protobuf import message_type
from gpudiag.report.export.tensorboard.log_directory import write_run
from gpudiag.report.text.run import to_markdown
from tests.cli_process import in_this_process

TRACES = Path(__file__).parents[1] / "traces"

PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)//",
    "\x1b]0;title\x07\x1b[2J",
    "\u009b31mred",
    "a\u202eb\u2066c",
    "[red]markup[/red]",
    "[x](javascript:alert(1))",
    "![x](http://example.invalid/p.png)",
    "|a|b|\n| --- |",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1+1",
    "{{ 7*7 }}{% raw %}",
    "$(touch owned)`id`",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run whose kernels, operators, modules, device names and record contain payloads."""
    directory = tmp_path_factory.mktemp("hostile")
    (directory / "traces").mkdir()
    for path in (TRACES / "clean").glob("*.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        named: dict[str, str] = {}
        for event in document["traceEvents"]:
            category = event.get("cat", "")
            if category in {"kernel", "cpu_op"} and not event["name"].startswith(("nccl", "c10d", "ProfilerStep")):
                event["name"] = named.setdefault(event["name"], PAYLOADS[len(named) % len(PAYLOADS)])
        for device in document.get("deviceProperties", ()):
            device["name"] = PAYLOADS[device.get("id", 0) % len(PAYLOADS)]
        (directory / "traces" / path.name).write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    record: dict[str, Any] = {
        "schema": "gpudiag/run/1",
        "created": PAYLOADS[0],
        "command": list(PAYLOADS),
        "workload": PAYLOADS[1],
        "framework": "pytorch",
        "strategy": PAYLOADS[10],
        "world_size": 4,
        "nodes": 1,
        "status": "complete",
        "batch_size_per_device": 8,
        "software": {"torch": PAYLOADS[3], PAYLOADS[2]: "1"},
        "options": {"precision": PAYLOADS[5]},
        "ranks": [],
    }
    (directory / "run.json").write_text(json.dumps(record))
    return directory


def out(*words: str) -> str:
    done = in_this_process(*words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.replace("\n", "").isprintable()
    return done.stdout


def test_terminal_output_has_no_control_characters_or_markup(hostile: Path) -> None:
    text = out("analyze", str(hostile))
    assert text.replace("\n", "").isprintable()
    assert "[red]" in text or "markup" not in text


def test_json_is_printable(hostile: Path) -> None:
    text = out("analyze", str(hostile), "--json")
    assert text.replace("\n", "").isprintable()
    json.loads(text)


def test_page_escapes_names(hostile: Path, tmp_path: Path) -> None:
    out("report", str(hostile), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert len(re.findall(r"<script\b", page)) == len(re.findall(r"</script>", page)) <= 4
    assert not re.search(r"<img|<script>alert|onerror=alert\(1\)>(?!&)", page)
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_markdown_escapes_names(hostile: Path, tmp_path: Path) -> None:
    out("report", str(hostile), "--markdown", str(tmp_path / "report.md"))
    text = (tmp_path / "report.md").read_text()
    assert text.replace("\n", "").isprintable()
    assert not re.search(r"(?<!\\)<(?:script|img)", text)
    assert not re.search(r"(?<!\\)\](?<!\\)\((?:javascript|http://example)", text)


@pytest.mark.parametrize("how", ["report", "export"])
def test_csv_cells_are_no_formulas(how: str, hostile: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    words = ("--csv", str(path)) if how == "report" else ("--to", "csv", "-o", str(path))
    out(how, str(hostile), *words)
    for row in csv.reader(io.StringIO(path.read_text())):
        for cell in row:
            if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(cell)  # only negative figures may start with a minus


@pytest.mark.parametrize("form", ["chrome", "perfetto"])
def test_viewers_get_no_control_characters(form: str, hostile: Path, tmp_path: Path) -> None:
    path = tmp_path / f"trace.{form}"
    out("export", str(hostile), "--to", form, "-o", str(path))
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    for harmful in ("\x1b]0;", "\u009b31m", "\u202eb"):
        assert harmful.encode() not in data


def test_tensorboard_gets_escaped_text(hostile: Path, tmp_path: Path) -> None:
    recorded = read_recorded([hostile])
    write_run(tmp_path / "run", recorded.export_model, recorded.series, to_markdown(analyze([hostile])))
    events = next((tmp_path / "run").glob("events.*")).read_bytes()
    assert b"\x1b]0;" not in events
    assert not re.search(rb"(?<!\\)<(?:script|img)", events)
    space = message_type("xplane", "XSpace").FromString(next((tmp_path / "run").rglob("*.xplane.pb")).read_bytes())
    names = [named.name for plane in space.planes for named in plane.event_metadata.values()]
    assert names
    assert not any("\x1b" in name or "\u202e" in name for name in names)
