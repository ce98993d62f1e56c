"""Judge gpudiag's findings about recordings with known causes.

    python benchmarks/recordings.py [EXPECTATIONS.json] [--root DIR] [--only WORDS] [--json] [--seconds 120]

`expectations/repository.json` describes the recordings in `tests/traces`; `expectations/public.json` describes public
recordings, which must be downloaded to `--root`. `expectation.py` checks each recording. The verdict is *right* if all
checks pass. It is *partly* right if a finding is missing or an amount is off, *wrong* if a finding misleads, *silent*
if no cause is reported although there is one, and *failed* if gpudiag refused the recording or timed out. The exit code
is 1 if any recording is wrong or failed.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from expectation import VERDICTS, Expectation, Said, Score, score
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
#: Width of the report in characters. The width is so large that line breaks rarely split expected phrases.
WIDTH = 160


def unpacked(expected: Expectation, root: Path, scratch: Path) -> Path:
    """Return the path to analyse; unpack a packed recording into `scratch` (traces, and `run.json` if known)."""
    path = root / expected.path
    if path.suffix != ".npz":
        return path
    sys.path.insert(0, str(REPOSITORY))
    from tests.traces.pack import unpack  # noqa: PLC0415  # importable only from the repository's root

    traces = scratch / "traces" if expected.run else scratch
    unpack(path, traces)
    if expected.light:
        unpack(root / expected.light, traces / "light")
    if expected.run:
        file, *keys = expected.run
        record = json.loads((root / file).read_text(encoding="utf-8"))
        for key in keys:
            record = record[key]
        (scratch / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return scratch


def analyse(path: Path) -> None:
    """Print gpudiag's analysis and report of a recording as JSON."""
    from gpudiag.app.analyze import analyze  # noqa: PLC0415  # only in the child process of one recording
    from gpudiag.errors import GpudiagError  # noqa: PLC0415
    from gpudiag.report.console import report_console  # noqa: PLC0415
    from gpudiag.report.terminal.report import render_analysis  # noqa: PLC0415

    try:
        analysis = analyze([path])
    except GpudiagError as error:
        said = Said(error=str(error))
    else:
        text = io.StringIO()
        render_analysis(analysis, report_console(text, width=WIDTH), full=True)
        said = Said(analysis=json.loads(msgspec.json.encode(analysis)), report=text.getvalue())
    sys.stdout.buffer.write(msgspec.json.encode(said))


def said_of(path: Path, seconds: float) -> Said:
    """Analyse a recording in a child process, and return gpudiag's analysis and report."""
    command = [sys.executable, str(Path(__file__).resolve()), "--analyse", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, cwd=REPOSITORY)
    except subprocess.TimeoutExpired:
        return Said(error=f"not done after {seconds:.0f} s")
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()
        return Said(error=last[-1] if last else f"exit code {done.returncode}")
    return msgspec.json.decode(done.stdout, type=Said)


def score_all(expectations: list[Expectation], root: Path, seconds: float) -> list[Score]:
    """Return the score of each recording; skip missing recordings with a line on standard error."""
    scores = []
    for number, expected in enumerate(expectations, 1):
        if not (root / expected.path).exists():
            print(f"{expected.name}: {root / expected.path} is not there", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            scores.append(score(expected, said_of(unpacked(expected, root, Path(scratch)), seconds)))
        print(f"{number}/{len(expectations)} {expected.name}: {scores[-1].verdict}", file=sys.stderr, flush=True)
    return scores


def draw(scores: list[Score]) -> Table:
    """Return a table with a row for each recording."""
    table = Table("recording", "verdict", "first", "what is wrong or missing")
    for row in scores:
        table.add_row(row.name, row.verdict, row.first, "; ".join([*row.misleading, *row.incomplete]))
    return table


def summary(scores: list[Score]) -> str:
    """Return the number of recordings by verdict."""
    counts = Counter(row.verdict for row in scores)
    return f"{len(scores)} recordings: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("expectations", nargs="?", type=Path, default=HERE / "expectations" / "repository.json")
    parser.add_argument("--root", type=Path, default=REPOSITORY / "tests" / "traces")
    parser.add_argument("--only", default="", help="recordings whose names contain one of these, with commas between")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit per recording")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output instead of a table")
    parser.add_argument("--analyse", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.analyse:
        analyse(given.analyse)
        return 0
    expectations = msgspec.json.decode(given.expectations.read_bytes(), type=list[Expectation])
    wanted = [
        expectation for expectation in expectations if any(word in expectation.name for word in given.only.split(","))
    ]
    scores = score_all(wanted, given.root.resolve(), given.seconds)
    if given.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(scores), indent=1) + b"\n")
    else:
        Console(width=170).print(draw(scores))
        print(summary(scores))
    return 1 if any(row.verdict in {"wrong", "failed"} for row in scores) else 0


if __name__ == "__main__":
    raise SystemExit(main())
