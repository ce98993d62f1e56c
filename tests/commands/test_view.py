"""Test `gpudiag view` in a real browser, and its error messages."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest

from gpudiag.app.analyze import analyze
from gpudiag.model.event import EventKind
from gpudiag.trace import read_traces
from tests.cli_process import gpudiag
from tests.commands.tensorboards import board_python, browser_path, viewing
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Frame, Page

SCREENSHOT = Path(__file__).parents[2] / "docs" / "images" / "view-trace-viewer.png"
PATIENCE_MS = 120_000
#: All tests that start TensorBoard run on one worker, in sequence.
pytestmark = pytest.mark.xdist_group("tensorboard")


def fetched(url: str) -> Any:
    """Fetch JSON from gpudiag's server."""
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - the URL of the test's own server
        data = answer.read()
    return json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)


@pytest.fixture
def page() -> Iterator[Page]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is missing")
    with playwright.sync_playwright() as driver:
        # Tests in containers run as root, and Chromium's sandbox does not start as root. The page is trusted.
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1290})
        yield page
        browser.close()


def trace_viewer(page: Page, url: str) -> Frame:
    """Open the plugin's trace viewer, and wait until it has drawn."""
    page.goto(f"{url}#profile")
    page.wait_for_selector("iframe", timeout=PATIENCE_MS)
    plugin = page.frame_locator("iframe")
    plugin.get_by_text("Overview Page").first.wait_for(timeout=PATIENCE_MS)
    plugin.locator("mat-select").nth(1).click()
    plugin.locator("mat-option", has_text="Trace Viewer").first.click()
    drawn = 0
    for _ in range(PATIENCE_MS // 500):
        for frame in page.frames:
            if "trace_viewer_index" in frame.url and frame.get_by_text("gpudiag steps").count():
                before, drawn = drawn, frame.get_by_text("gpudiag").count()
                if drawn == before:  # the viewer has drawn the tracks of all ranks
                    return frame
        page.wait_for_timeout(500)
    raise AssertionError("the trace viewer drew nothing")


def heights(frame: Frame, text: str) -> list[float]:
    """Return the vertical position of each heading `text`, in order."""
    boxes = [box.bounding_box() for box in frame.get_by_text(text).all() if box.is_visible()]
    return sorted(box["y"] for box in boxes if box is not None)


@pytest.mark.apart
def test_trace_viewer_shows_four_ranks_in_order(page: Page, request: pytest.FixtureRequest) -> None:
    with viewing(str(TRACES / "slow_loader_rank2"), "--port", "0") as (_, url):
        frame = trace_viewer(page, url)
        own = [heights(frame, f"rank {rank} · gpudiag") for rank in range(4)]
        devices = [heights(frame, f"/device:GPU:{rank}") for rank in range(4)]
        assert [len(found) for found in (*own, *devices)] == [1] * 8
        tops = [top for rank in range(4) for top in (own[rank][0], devices[rank][0])]
        assert tops == sorted(tops), "ranks are in order, and gpudiag's lines of a rank are above its streams"
        steps, parts, streams = (heights(frame, text) for text in ("gpudiag steps", "gpudiag buckets", "Stream #7("))
        assert len(steps) == len(parts) == len(streams) == 4
        for rank in range(4):
            assert own[rank][0] < steps[rank] < parts[rank] < devices[rank][0] < streams[rank]
        # Rank 2 is the straggler, so it waits for no rank.
        assert len(heights(frame, "gpudiag waits")) == 3
        if request.config.getoption("--update-golden"):
            page.wait_for_timeout(3000)
            SCREENSHOT.parent.mkdir(exist_ok=True)
            page.screenshot(path=SCREENSHOT)


JOBS = ("clean", "slow_loader_rank2", "tiny", "vgg_p2poff", "gloo_dataloader")


def table(url: str, run: str, tool: str) -> Any:
    """Return the plugin's table of a tool; of the overview's several tables, return the table of steps."""
    data = fetched(f"{url}data/plugin/profile/data?run={quote(run)}&tag={tool}&host=gpudiag")
    return next(rows for rows in data if "steptime_ms_average" in rows["p"]) if tool == "overview_page" else data


@pytest.mark.apart
def test_the_overview_has_the_figures_of_the_analysis(tmp_path: Path) -> None:
    for name in JOBS:
        run = tmp_path / name
        shutil.copytree(TRACES / name, run / "traces")
        (run / "run.json").write_text(RUN)
    conclusions, computed = {}, {}
    with viewing(str(tmp_path), "--port", "0") as (_, url):
        runs = {run.partition("/")[0]: run for run in fetched(f"{url}data/plugin/profile/runs")}
        for name in JOBS:
            analysis = analyze([TRACES / name])
            overview = table(url, runs[name], "overview_page")
            columns = [column["id"] for column in overview["cols"]]
            steps = [dict(zip(columns, (cell["v"] for cell in row["c"]), strict=True)) for row in overview["rows"]]
            computed[name] = {key: np.mean([s[key] for s in steps]) for key in columns if key.endswith("Ms")}
            conclusions[name] = overview["p"]["input_conclusion"]
            assert computed[name]["stepTimeMs"] == pytest.approx(analysis.steps.mean_ms, rel=0.03)
            kernels = table(url, runs[name], "kernel_stats")["rows"]
            assert {row["c"][1]["v"] for row in kernels} == kernel_names(name)
    # Rank 2 is the straggler, and `gpudiag analyze` reports the following parts for rank 2.
    late = next(device for device in analyze([TRACES / "slow_loader_rank2"]).devices if device.rank == 2)
    table_of_steps = computed["slow_loader_rank2"]
    assert table_of_steps["infeedTimeMs"] == pytest.approx(late.buckets_ms["idle"], rel=0.1)
    assert table_of_steps["deviceCollectivesTimeMs"] == pytest.approx(
        late.buckets_ms["communication_transfer"], rel=0.1
    )
    assert "HIGHLY input-bound" in conclusions["slow_loader_rank2"]
    for name in ("clean", "vgg_p2poff"):
        assert "NOT input-bound" in conclusions[name]
        assert computed[name]["otherTimeMs"] < 0.03 * computed[name]["stepTimeMs"]
    transfer = [device.buckets_ms["communication_transfer"] for device in analyze([TRACES / "vgg_p2poff"]).devices]
    assert computed["vgg_p2poff"]["deviceCollectivesTimeMs"] == pytest.approx(np.mean(transfer), rel=0.03)


def kernel_names(job: str) -> set[str]:
    """Return the names of all kernels in the traces of a job."""
    tables = [trace.events for trace in read_traces([TRACES / job])]
    return {events.names[name] for events in tables for name in np.unique(events.name[events.kind == EventKind.KERNEL])}


@pytest.mark.apart
def test_runs_of_both_frameworks_are_shown_together(tmp_path: Path) -> None:
    for name in ("tensorflow", "clean"):
        run = tmp_path / name
        shutil.copytree(TRACES / name, run / "traces")
        (run / "run.json").write_text(RUN.replace("pytorch", "tensorflow" if name == "tensorflow" else "pytorch"))
    lost = tmp_path / "lost"
    lost.mkdir()
    (lost / "run.json").write_text(RUN)
    with viewing(str(tmp_path), "--port", "0") as (_, url):
        runs = fetched(f"{url}data/plugin/profile/runs")
        assert sorted(run.partition("/")[0] for run in runs) == ["clean", "tensorflow"]
        tags = fetched(f"{url}data/plugin/scalars/tags")
        assert {"step/ms", "efficiency/compute", "buckets_ms/communication_wait"} <= set(tags["clean"])
        assert fetched(f"{url}data/plugin/text/tags") == {
            "clean": ["gpudiag/verdict"],
            "tensorflow": ["gpudiag/verdict"],
        }
        (text,) = fetched(f"{url}data/plugin/text/text?run=clean&tag=gpudiag/verdict")
        assert all(heading in text["text"] for heading in ("Next</h2>", "Findings</h2>"))
        points = fetched(f"{url}data/plugin/scalars/scalars?run=clean&tag=step/ms")
        assert [value for _, _, value in points] == pytest.approx([31.2, 31.2], rel=0.05)


RUN = json.dumps(
    {
        "schema": "gpudiag/run/1",
        "created": "2026-01-01T00:00:00",
        "command": [],
        "workload": "resnet50",
        "framework": "pytorch",
        "strategy": "nccl",
        "world_size": 4,
        "nodes": 1,
        "batch_size_per_device": 64,
        "status": "complete",
    }
)


@pytest.mark.apart
def test_server_is_local_by_default() -> None:
    with viewing(str(TRACES / "gloo_dataloader"), "--port", "0") as (_, url):
        port = int(url.rpartition(":")[2].strip("/"))
        with socket.socket() as outside:
            outside.settimeout(2)
            addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
            for address in addresses - {"127.0.0.1", "127.0.1.1"}:
                assert outside.connect_ex((str(address), port)) != 0


def refused(*words: str, code: int) -> tuple[str, str]:
    result = gpudiag("view", *words)
    assert result.returncode == code, result.stderr
    what, hint = result.stderr.splitlines()
    return what, hint


@pytest.mark.apart
def test_busy_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        what, hint = refused(
            str(TRACES / "clean"), "--port", str(port), "--python", board_python(), "--no-open", code=2
        )
    assert f"port {port} of 127.0.0.1 is in use" in what
    assert "--port" in hint


@pytest.mark.apart
def test_foreign_host_address_is_refused() -> None:
    what, _ = refused(str(TRACES / "clean"), "--host", "192.0.2.1", "--python", board_python(), code=2)
    assert "192.0.2.1" in what


def bare_python(tmp_path: Path, *modules: str) -> str:
    """Make an interpreter without site-packages, but with empty packages `modules`."""
    for module in modules:
        (tmp_path / "site" / module).mkdir(parents=True)
        (tmp_path / "site" / module / "__init__.py").touch()
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_interpreter_without_tensorboard_is_refused(tmp_path: Path) -> None:
    what, hint = refused(str(TRACES / "clean"), "--python", bare_python(tmp_path), code=5)
    assert "has no TensorBoard" in what
    assert ".[tensorboard]" in hint


def test_tensorboard_without_the_plugin_is_refused(tmp_path: Path) -> None:
    what, hint = refused(str(TRACES / "clean"), "--python", bare_python(tmp_path, "tensorboard"), code=5)
    assert "without the profile plugin" in what
    assert "pip install xprof" in hint


def test_incompatible_tensorboard_is_refused(tmp_path: Path) -> None:
    python = bare_python(tmp_path, "tensorboard", "xprof")
    (tmp_path / "site" / "tensorboard" / "main.py").write_text("raise ImportError('xprof wants another protobuf')")
    what, hint = refused(str(TRACES / "gloo_dataloader"), "--port", "0", "--python", python, code=5)
    assert "xprof wants another protobuf" in what
    assert "pip install --upgrade tensorboard xprof" in hint


#: A TensorBoard that serves without the profile plugin in its list, as an incompatible version does.
_WITHOUT_PROFILE = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"scalars": {}}')
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


def test_unloaded_plugin_is_refused(tmp_path: Path) -> None:
    python = bare_python(tmp_path, "tensorboard", "xprof")
    (tmp_path / "site" / "tensorboard" / "main.py").write_text(_WITHOUT_PROFILE)
    what, hint = refused(str(TRACES / "gloo_dataloader"), "--port", "0", "--python", python, code=5)
    assert "the plugin was not loaded" in what
    assert "Upgrade both" in hint


def test_missing_interpreter_is_refused(tmp_path: Path) -> None:
    what, _ = refused(str(TRACES / "clean"), "--python", str(tmp_path / "python"), code=5)
    assert "does not run as a Python interpreter" in what


def test_run_without_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(RUN)
    what, hint = refused(str(tmp_path), "--port", "0", "--python", board_python(), code=4)
    assert "has no traces to show" in what
    assert "gpudiag report" in hint


def test_empty_directory_cannot_be_shown(tmp_path: Path) -> None:
    refused(str(tmp_path), "--port", "0", "--python", board_python(), code=4)
    refused(str(tmp_path / "gone"), "--port", "0", "--python", board_python(), code=4)
