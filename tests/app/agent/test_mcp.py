"""Test `gpudiag mcp` with a client of the official SDK, in a separate environment (`make clients`)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpudiag.app.agent.profiling import profile_command
from tests.cli_process import SECONDS, environment, gpudiag

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "clients-venv" / "bin" / "python"
TRACES = ROOT / "tests" / "traces"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("processes"),
]
needs_clients = pytest.mark.skipif(not PYTHON.exists(), reason="make clients has not been run")

#: This program calls the tools that its first argument lists, and prints the tools' answers.
CLIENT = """
import asyncio, json, sys
from mcp import ClientSession, StdioServerParameters, stdio_client

async def main():
    words = ["-m", "gpudiag", "mcp", *sys.argv[2:]]
    server = StdioServerParameters(command=sys.executable, args=words, env={"PYTHONPATH": ROOT})
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        opened = await session.initialize()
        listed = (await session.list_tools()).tools
        answers = []
        for name, arguments in json.loads(sys.argv[1]):
            result = await session.call_tool(name, arguments)
            answers.append({"error": bool(result.is_error), "text": "".join(part.text for part in result.content)})
        tools = {tool.name: bool(tool.annotations and tool.annotations.read_only_hint) for tool in listed}
        print(json.dumps({"server": opened.server_info.name, "tools": tools, "answers": answers}))

asyncio.run(main())
"""
READING = {"analyze", "findings", "compare", "frames", "explain", "step_picture"}


def asked(calls: list[tuple[str, dict[str, Any]]], *options: str) -> dict[str, Any]:
    """Start a client and its server, make `calls`, and return the server's answers."""
    done = subprocess.run(
        [str(PYTHON), "-c", CLIENT.replace("ROOT", repr(str(ROOT))), json.dumps(calls), *options],
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@needs_clients
def test_client_reads_a_recording_with_every_tool() -> None:
    job = ["gloo_dataloader"]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("analyze", {"paths": job}),
        ("findings", {"paths": job, "code": "straggler"}),
        ("compare", {"before": job, "after": job}),
        ("frames", {"paths": job, "table": "kernels", "limit": 2}),
        ("explain", {"code": "straggler"}),
        ("step_picture", {"paths": job}),
        ("analyze", {"paths": ["../golden"]}),
        ("frames", {"paths": job, "table": "nothing"}),
    ]
    answer = asked(calls, "--root", str(TRACES))
    assert answer["server"] == "gpudiag"
    assert answer["tools"] == dict.fromkeys(READING, True)
    *fine, outside, unknown = answer["answers"]
    assert [part["error"] for part in fine] == [False] * 6
    analyzed, found, compared, rows, explained = (json.loads(part["text"]) for part in fine[:5])
    assert analyzed["verdict"]["severity"] == "critical"
    assert [finding["code"] for finding in found["findings"]] == ["straggler"]
    assert compared["outcome"] == "no-difference"
    assert len(rows["rows"]) == 2
    assert explained["code"] == "straggler"
    assert "rank 1 " in fine[5]["text"]
    assert (outside["error"], "is outside of" in outside["text"]) == (True, True)
    assert (unknown["error"], "There are: devices" in unknown["text"]) == (True, True)


@needs_clients
def test_answers_keep_the_given_limit() -> None:
    job = {"paths": ["gloo_dataloader"]}
    answer = asked(
        [("findings", job), ("frames", {**job, "table": "kernels"})], "--root", str(TRACES), "--max-answer=2000"
    )
    assert all(len(part["text"]) <= 2000 for part in answer["answers"])
    assert json.loads(answer["answers"][0]["text"])["cut"]


TRAIN = """
import time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5000):
    time.sleep(0.005)
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
"""


@needs_clients
def test_commands_are_profiled_only_if_allowed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("profile", {"command": [str(PYTHON), "train.py"], "run_dir": "run"}),
        ("analyze", {"paths": ["run"]}),
        ("profile", {"command": [str(PYTHON), "train.py"], "run_dir": "../run"}),
    ]
    answer = asked(calls, "--root", str(tmp_path), "--allow-profile")
    assert answer["tools"] == {**dict.fromkeys(READING, True), "profile": False}
    profiled, analyzed, outside = answer["answers"]
    assert json.loads(profiled["text"])["run_dir"] == "run"
    assert json.loads(analyzed["text"])["steps"]["unprofiled_mean_ms"] > 5
    assert outside["error"]
    refused = asked(calls[:1], "--root", str(tmp_path))
    assert refused["answers"][0]["error"]


def test_a_command_that_takes_too_long_is_ended_with_its_processes(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    words = ["sh", "-c", "echo $$ > pid; exec sleep 300"]
    answer = profile_command(words, root, root / "run", 10.0)
    assert answer["timed_out"]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text(encoding='utf-8').strip()}").exists()


def test_missing_sdk_is_named_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError", encoding="utf-8")
    done = gpudiag("mcp", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 2
    message, hint = done.stderr.splitlines()
    assert message == "gpudiag: the MCP SDK (mcp 2) is not installed"
    assert hint == "  hint: Install it (in a clone: pip install '.[mcp]')."
