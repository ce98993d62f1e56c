"""Serve the questions as tools of the Model Context Protocol on standard input and output."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpudiag.app.agent.allowed_paths import AllowedPaths
from gpudiag.app.agent.bounded_answer import bounded_json
from gpudiag.app.agent.profiling import profile_command
from gpudiag.app.agent.questions import Questions
from gpudiag.errors import GpudiagError, MissingLibraryError
from gpudiag.trace import ReadLimits

_INSTRUCTIONS = (
    "gpudiag finds why training on several GPUs is slow, from recordings of torch.profiler or TensorFlow's profiler. "
    "Begin with `analyze`; then ask `findings` for evidence and advice, `explain` for the meaning of a code, `frames` "
    "for figures, `step_picture` for one step of all ranks, and `compare` for two runs. Times are in milliseconds per "
    "step. Paths are relative to the server's directory: a run directory, or the traces of one job. A long answer is "
    "cut, and its field `cut` says where."
)


def serve(root: Path, *, allow_profile: bool, most_characters: int, limits: ReadLimits) -> None:
    """Answer a client until it closes standard input.

    Args:
        root: directory to which all paths are restricted.
        allow_profile: whether clients may run commands.
        most_characters: maximum length of an answer.
        limits: limits on the traces that are read.

    Raises:
        MissingLibraryError: the MCP SDK is not installed.
        UsageError: `root` is no directory.
    """
    paths = AllowedPaths(root)
    server = _server(Questions(paths, most_characters, limits))
    if allow_profile:
        _add_profiling(server, paths, most_characters)
    server.run("stdio")


def _server(questions: Questions) -> Any:
    """Return an MCP server with one tool for each kind of question. The tools' docstrings are shown to clients."""
    try:
        from mcp.server.mcpserver import MCPServer  # noqa: PLC0415  # an optional dependency
        from mcp.types import ToolAnnotations  # noqa: PLC0415  # likewise
    except ImportError as error:
        hint = "Install it (in a clone: pip install '.[mcp]')."
        raise MissingLibraryError("the MCP SDK (mcp 2) is not installed", hint) from error
    server = MCPServer("gpudiag", instructions=_INSTRUCTIONS, log_level="WARNING")
    reads_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    def add(function: Callable[..., str]) -> None:
        server.add_tool(_with_tool_errors(function), annotations=reads_only, structured_output=False)

    def analyze(paths: list[str], world_size: int | None = None) -> str:
        """Diagnose one job: verdict, what to do next, step times, buckets per rank, findings in short, warnings."""
        return questions.analyze(paths, world_size)

    def findings(paths: list[str], code: str | None = None) -> str:
        """List findings with evidence, advice, savings (ms per step) and source lines; `code` selects one kind."""
        return questions.findings(paths, code)

    def compare(before: list[str], after: list[str]) -> str:
        """Attribute the difference of two runs' step times to buckets, ranks, kernels and lines."""
        return questions.compare(before, after)

    def frames(
        paths: list[str],
        table: str,
        columns: list[str] | None = None,
        order_by: str | None = None,
        limit: int = 50,
    ) -> str:
        """Read rows of a table: devices, buckets, steps, waits, collectives, kernels, operators, modules, lines, …

        `order_by` puts the rows with the largest values of a column first. At most 200 rows are returned.
        """
        return questions.table(paths, table, columns or (), order_by, limit)

    def explain(code: str) -> str:
        """Explain the code of a finding or a warning, such as `straggler`: meaning, examples and advice."""
        return questions.explain(code)

    def step_picture(paths: list[str], width: int = 100) -> str:
        """Draw one step of all ranks as text: a row per rank, a character per interval, and the longest waits."""
        return questions.picture(paths, width)

    for function in (analyze, findings, compare, frames, explain, step_picture):
        add(function)
    return server


def _add_profiling(server: Any, paths: AllowedPaths, most_characters: int) -> None:
    """Add the tool that runs a command."""

    def profile(command: list[str], run_dir: str, timeout_s: float = 600.0) -> str:
        """Run and measure a training command in the server's directory; ends it when it is measured.

        The recording is written to `run_dir`, a new directory; `analyze` reads it.
        """
        answer = profile_command(command, paths.root, paths.inside(run_dir), timeout_s)
        return bounded_json(answer, most_characters)

    server.add_tool(_with_tool_errors(profile), structured_output=False)


def _with_tool_errors(function: Callable[..., str]) -> Callable[..., str]:
    """Wrap a function so that gpudiag's errors become tool errors, which the client's model reads."""
    from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415  # an optional dependency

    @functools.wraps(function)
    def answer(*args: Any, **kwargs: Any) -> str:
        try:
            return function(*args, **kwargs)
        except GpudiagError as error:
            raise ToolError(f"{error}\n{error.hint}") from error

    return answer
