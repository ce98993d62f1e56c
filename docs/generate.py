"""Write what the documentation takes from the program, and check that every link in it leads somewhere.

    python docs/generate.py            write the generated parts again
    python docs/generate.py --check    change nothing; exit code 1 when something is out of date or a link is dead

A command's page has its help between two marks; everything around them is written by hand.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from gpudiag import commands

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ROOT / "docs" / "commands"
BEGIN, END = "<!-- begin: generated from --help by docs/generate.py -->", "<!-- end: generated -->"
COLUMNS = "100"
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def main() -> int:
    """Generate or check, then look at all links."""
    check = "--check" in sys.argv[1:]
    stale = [page for page, text in command_pages().items() if _put(page, text, check=check)]
    for page in stale:
        _say(f"{page.relative_to(ROOT)}: {'out of date: run make docs' if check else 'written'}")
    dead = dead_links()
    for problem in dead:
        _say(problem)
    return 1 if dead or (check and stale) else 0


def command_pages() -> dict[Path, str]:
    """Each command's page, with its help as it is now."""
    return {COMMANDS / f"{verb}.md": _page(COMMANDS / f"{verb}.md", verb) for verb in commands.available()}


def _page(path: Path, verb: str) -> str:
    text = path.read_text(encoding="utf-8") if path.exists() else f"# gpudiag {verb}\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```text\n$ gpudiag {verb} --help\n{_help(verb)}```\n{END}{after}"


def _help(verb: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "gpudiag", verb, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": COLUMNS},
    )
    return "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())


def _put(path: Path, text: str, *, check: bool) -> bool:
    """Whether the file differs from `text`, which it then becomes, unless only checking."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    if not check:
        path.write_text(text, encoding="utf-8")
    return True


def dead_links() -> list[str]:
    """Links between the project's own pages that lead nowhere. Links to other sites are not followed."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [problem for page in sorted(pages) for problem in _dead_links_of(page)]


def _dead_links_of(page: Path) -> list[str]:
    problems = []
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists():
            problems.append(f"{page.relative_to(ROOT)}: no such file: {target}")
        elif anchor and anchor not in _anchors(linked):
            problems.append(f"{page.relative_to(ROOT)}: no such heading: {target}")
    return problems


def _anchors(page: Path) -> set[str]:
    """Headings as GitHub turns them into anchors."""
    headings = HEADING.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    raise SystemExit(main())
