"""Compare gpudiag's predicted savings of changes to the computation with measured savings, on one GPU.

    python benchmarks/judge_changes.py [--models gpt2,vit] [--keep DIR] [--each 150] [--seconds 300]
    python benchmarks/judge_changes.py --draw DIR/rows.json,OTHER/rows.json

Each model of `compute_models.py` runs once under `gpudiag profile --try` with the changes that it implements. gpudiag
predicts the savings from the recording of the unchanged job, and measures them afterwards in alternating blocks. The
verdicts on a change:

- sign: right if a change saves at least 5 % of the step and a finding recommends the change.
- amount: right if the predicted savings of such a change are within 35 % of the measured ones; wrong without a finding.
- false: a finding recommends the change, but the change saves less than 2 %.

`interval` says whether the measured savings are between the low and the high estimate of the finding. A run is stopped
after `--each` seconds, and only the changes measured until then are judged. `--keep DIR` receives `rows.json` after
each model, `reports.tar` (reports and logs) and `runs-N.tar` (the run directories, at most 15 MB a file). `--draw`
prints the table and the totals of earlier rows. `TINY=1` in the environment runs everything on a CPU, where nothing is
predicted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from judge_scripts import HERE, Archives, RunError, run
from rich.console import Console
from rich.table import Table

#: Changes of each model in `compute_models.py`.
CHANGES = {
    "resnet50": "channels-last,fused,compile",
    "vit": "channels-last,fused,sdpa,compile",
    "gpt2": "tf32,fused,sdpa,compile",
    "efficientnet": "tf32,channels-last,fused,compile",
    "unet": "tf32,channels-last,fused,compile",
    "lstm": "tf32,fused",
    "bert": "tf32,fused,sdpa,compile",
    "densenet": "channels-last,fused,compile",
    "mobilenet": "channels-last,fused,compile",
    "llama": "fused,sdpa,compile",
    "mixer": "tf32,fused,compile",
    "convnext": "channels-last,fused,compile",
    "wavenet": "fused,compile",
    "translator": "tf32,fused,sdpa,compile",
    "mnasnet": "channels-last,fused,compile",
    "shufflenet": "channels-last,fused,compile",
    "resnext": "channels-last,fused,compile",
    "regnet": "channels-last,fused,compile",
    "deit": "fused,sdpa,compile",
}
#: Limits in percent of the step: larger savings than the first need a finding; below the second, a finding is false.
MATTERS_PERCENT, FALSE_PERCENT = 5.0, 2.0
#: Largest relative difference of a right amount to the measured savings.
TOLERANCE = 0.35
#: Maximum duration of the analysis of a run that was stopped, in seconds.
RESCUE_SECONDS = 40.0


def judge(tried: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a change with its verdicts.

    An unmeasured change has no verdicts. `sign_right` and `amount_right` are missing if the savings are too small to
    need a finding, and `in_interval` is missing if there is no finding.

    Args:
        tried: the change in `tries` of `analysis.json`; `predicted_ms` is None without a finding.
    """
    row = {key: tried[key] for key in ("change", "verdict", "reason", "measured_ms", "ci95_ms", "base_ms")}
    row |= {key: tried[key] for key in ("predicted_ms", "predicted_low_ms", "predicted_high_ms")}
    measured_ms, predicted_ms = row["measured_ms"], row["predicted_ms"]
    if measured_ms is None:
        return row
    row["percent"] = percent = 100 * measured_ms / row["base_ms"]
    has_finding = predicted_ms is not None
    if percent >= MATTERS_PERCENT:
        row["sign_right"] = has_finding and predicted_ms > 0
        row["amount_right"] = has_finding and abs(predicted_ms - measured_ms) <= TOLERANCE * measured_ms
    row["false"] = has_finding and percent < FALSE_PERCENT
    if has_finding:
        row["in_interval"] = row["predicted_low_ms"] <= measured_ms <= row["predicted_high_ms"]
    return row


def profile(model: str, changes: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Return the analysis of one model with its changes; the report is written to `report.txt`."""
    run_dir = folder / "run"
    command = [sys.executable, "-m", "gpudiag", "profile", f"compute_models:{model}", "--devices", "1"]
    command += ["--try", changes, "--output", str(run_dir)]
    (folder / "report.txt").write_text(run(command, seconds, folder / "progress.log"), encoding="utf-8")
    analysis: dict[str, Any] = json.loads((run_dir / "analysis.json").read_text(encoding="utf-8"))
    return analysis


def rescue(folder: Path) -> dict[str, Any]:
    """Return the analysis of a run that was stopped, with the changes that had been measured until then."""
    run_dir = folder / "run"
    # `gpudiag profile` would have copied this file at its end; `gpudiag analyze` reads only the copy.
    shutil.copy(run_dir / "tries" / "tries.json", run_dir / "tries.json")
    command = [sys.executable, "-m", "gpudiag", "analyze", str(run_dir), "--json"]
    analysis: dict[str, Any] = json.loads(run(command, RESCUE_SECONDS, folder / "rescue.log"))
    return analysis


def try_model(model: str, changes: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Profile one model with its changes, and judge them; return failures as part of the result."""
    folder.mkdir(parents=True)
    run_dir = folder / "run"
    row: dict[str, Any] = {"model": model}
    began = time.perf_counter()
    try:
        try:
            analysis = profile(model, changes, folder, seconds)
        except RunError as error:
            row["failed"] = str(error)
            analysis = rescue(folder)
        row["steps"] = {key: analysis["steps"][key] for key in ("median_ms", "unprofiled_mean_ms", "analysed")}
        row["findings"] = [
            [finding["code"], finding["cause"], finding["recoverable_ms_per_step"]] for finding in analysis["findings"]
        ]
        row["validity"] = [warning["code"] for warning in analysis["validity"]]
        row["changes"] = [judge(tried) for tried in analysis["tries"]]
    except (RunError, ValueError, OSError, KeyError) as error:
        row["failed"] = " | ".join(filter(None, (row.get("failed"), f"{type(error).__name__}: {error}")))
    row["took_s"] = round(time.perf_counter() - began, 1)
    for log in sorted(run_dir.rglob("logs/*.log")):
        shutil.copy(log, folder / "-".join(log.relative_to(run_dir).parts))
    return row


def draw(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row for each change."""
    table = Table("model", "change", "step ms", "measured ms", "%", "predicted ms", "interval", "sign", "amount")
    for row in rows:
        if "failed" in row:
            table.add_row(row["model"], row["failed"][:60])
        for change in row.get("changes", ()):
            if change["measured_ms"] is None:
                table.add_row(row["model"], change["change"], f"{change['verdict']}: {change['reason']}"[:60])
                continue
            low, high = change["ci95_ms"]
            predicted = "—"
            if change["predicted_ms"] is not None:
                ends = f"{change['predicted_low_ms']:.1f} to {change['predicted_high_ms']:.1f}"
                predicted = f"{change['predicted_ms']:.1f} ({ends})"
            table.add_row(
                row["model"],
                change["change"],
                f"{change['base_ms']:.1f}",
                f"{change['measured_ms']:.1f} ({low:.1f} to {high:.1f})",
                f"{change['percent']:.1f}",
                predicted,
                {True: "inside", False: "outside"}.get(change.get("in_interval", ""), ""),
                "false" if change["false"] else {True: "right", False: "missed"}.get(change.get("sign_right", ""), ""),
                {True: "right", False: "off"}.get(change.get("amount_right", ""), ""),
            )
    return table


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of verdicts: over all changes, and for each kind of change."""
    measured = [change for row in rows for change in row.get("changes", ()) if change["measured_ms"] is not None]
    counted = {"all": _count(measured)}
    for name in dict.fromkeys(change["change"] for change in measured):
        counted[name] = _count([change for change in measured if change["change"] == name])
    return counted


def _count(changes: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the number of measured changes, and the number with each verdict."""
    return {
        "measured": len(changes),
        "matter": sum("sign_right" in change for change in changes),
        "sign_right": sum(change.get("sign_right", False) for change in changes),
        "amount_right": sum(change.get("amount_right", False) for change in changes),
        "findings": sum(change["predicted_ms"] is not None for change in changes),
        "in_interval": sum(change.get("in_interval", False) for change in changes),
        "false": sum(change["false"] for change in changes),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table and the totals."""
    Console(width=150).print(draw(rows))
    counted = totals(rows)
    print(json.dumps({"totals": counted}))
    overall = counted["all"]
    print(
        f"{overall['sign_right']} of {overall['matter']} that save {MATTERS_PERCENT:.0f} % have a finding, "
        f"{overall['amount_right']} of {overall['matter']} within {100 * TOLERANCE:.0f} %; "
        f"{overall['false']} of {overall['findings']} findings false",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CHANGES), help="names with commas between them; default: all")
    parser.add_argument("--changes", help="try these instead of all changes of a model, with commas between them")
    parser.add_argument("--keep", type=Path, help="write rows, reports and run directories here")
    parser.add_argument("--each", type=float, default=150.0, help="give up a model after this many seconds")
    parser.add_argument("--seconds", type=float, default=300.0, help="start no further model after this long")
    parser.add_argument("--draw", help="only print these rows.json, with commas between them")
    given = parser.parse_args()
    if given.draw:
        kept = [json.loads(Path(name).read_text(encoding="utf-8"))["rows"] for name in given.draw.split(",")]
        show([row for rows in kept for row in rows])
        return
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    began, rows = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as scratch:
        # A compilation that is stopped can leave truncated files, which later runs would load.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(scratch) / "compiled")
        keep = given.keep or Path(scratch) / "keep"
        keep.mkdir(parents=True, exist_ok=True)
        archives = Archives(keep)
        for model in given.models.split(","):
            if time.perf_counter() - began > given.seconds:
                print(f"no time left for {model}", flush=True)
                continue
            folder = Path(scratch) / model
            row = try_model(model, given.changes or CHANGES[model], folder, given.each)
            row["left_out"] = archives.keep(model, folder)
            rows.append(row)
            (keep / "rows.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(row), flush=True)
    show(rows)


if __name__ == "__main__":
    main()
