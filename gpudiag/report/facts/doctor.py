"""Print the checks of `gpudiag doctor`."""

from __future__ import annotations

from collections import Counter

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gpudiag.model.checkup import Check, CheckStatus, Checkup
from gpudiag.model.sanitize import one_line
from gpudiag.report.console import plain_grid, print_trimmed

_STYLES: dict[CheckStatus, str] = {
    "ok": "green",
    "warning": "bold yellow",
    "blocked": "bold red",
    "unknown": "cyan",
    "not-needed": "dim",
}
_LONGEST = 600


def render_checkup(checkup: Checkup, console: Console) -> None:
    """Print a verdict, the machine, and each check with the steps that mend it."""
    grid = plain_grid({"no_wrap": True}, {"no_wrap": True}, {})
    for check in checkup.checks:
        _add(grid, check)
    counts = Counter(check.status for check in checkup.checks)
    print_trimmed(console, Group(_verdict(counts), Text(_machine(checkup), style="dim"), Text(), grid))


def _add(grid: Table, check: Check) -> None:
    """Add the rows of a check: its title, what could not be read, and the steps that remove the obstacle."""
    words = Text(one_line(check.title)[:_LONGEST], style="dim" if check.status == "not-needed" else "")
    grid.add_row(Text(check.status, style=_STYLES[check.status]), Text(check.code), words)
    if check.not_seen:
        grid.add_row("", "", Text(f"not seen: {one_line(check.not_seen)[:_LONGEST]}", style="dim"))
    for step in check.fix:
        grid.add_row("", "", Text(f"→ {one_line(step)[:_LONGEST]}"))


def _verdict(counts: Counter[CheckStatus]) -> Text:
    """Return the verdict line from the number of checks of each status."""
    warnings, unseen = counts["warning"], counts["unknown"]
    others = [f"{warnings} warning{'s' * (warnings > 1)}"] if warnings else []
    others += [f"{unseen} could not be seen"] if unseen else []
    rest = f" ({', '.join(others)})" if others else ""
    if blocked := counts["blocked"]:
        return Text(f"{blocked} of these checks block{'s' * (blocked == 1)} a job{rest}.", style="bold red")
    style = "bold yellow" if counts["warning"] else "bold green"
    return Text(f"Nothing blocks a job{rest}.", style=style)


def _machine(checkup: Checkup) -> str:
    """Return the line with GPUs, versions, number of ranks, and the duration of the checks."""
    summary = {name: one_line(value)[:80] for name, value in checkup.summary.items()}
    gpus = "no GPU" if summary.get("gpus") == "none" else summary.get("gpus")
    python = f"Python {summary['python']}" if "python" in summary else None
    driver = f"driver {summary['driver']}" if "driver" in summary else None
    ranks = f"{summary.get('ranks', '?')} ranks"
    parts = (gpus, summary.get("framework"), python, driver, ranks, f"{checkup.seconds:.1f} s")
    return " · ".join(part for part in parts if part)
