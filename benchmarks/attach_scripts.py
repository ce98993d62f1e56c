"""Score the findings of `gpudiag profile -- torchrun` for six slow scripts without gpudiag calls.

    python benchmarks/attach_scripts.py [--processes 2] [--kinds late-loader,item] [--keep DIR] [--own-profiler 60]

With --keep, leave the run directories and rows.json in DIR; `.ci/rows.py` counts the right rows. With --own-profiler N,
run N jobs whose script creates its own profiler while gpudiag's runs, and report their outcomes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gpudiag.training.attach.command_process import VARIABLE, Settings
from gpudiag.training.attach.start import ENTRY

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "training" / "attach" / "slow_scripts.py"
#: This program imports PyTorch under gpudiag and then forks the two ranks of each job.
FORKS = """
import dataclasses, os, pathlib, shutil, socket, sys, tempfile
from gpudiag.training.attach import entered
from tests.training.attach import scripts

for number in range(int(sys.argv[1])):
    before, place = number % 48, tempfile.mkdtemp()  # gpudiag needs about 40 steps for all its phases
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [os.fork()]
    if ranks[0]:
        ranks.append(os.fork())
    if 0 in ranks:
        sys.stdout = open(f"{place}/said{len(ranks)}", "w")
        os.environ.update(RANK=str(len(ranks) - 1), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ["BEFORE"] = str(before)
        settings = dataclasses.replace(entered._entered.settings, run_dir=place)
        entered._entered = entered.EnteredProcess(settings)
        scripts.settle()
        scripts.own_profiler(60)
        sys.exit()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    lines = [len(open(f"{place}/said{rank}").readlines()) for rank in (1, 2)]
    traces = sorted(path.parent.name for path in pathlib.Path(place).glob("traces/**/*.gz"))
    print(f"own profiler after {before:2} steps: exit codes {codes}, {lines} of 61 lines, {traces}", flush=True)
    shutil.rmtree(place)
"""

ON_GPUS = torch.cuda.is_available()
#: Kind of script → (correct codes with their causes, None for any; rank at fault, None if any ranks may be named).
#: Without GPUs `.item()` waits for no device, so that the job `item` loses its time in communication.
EXPECTED: dict[str, tuple[dict[str, str | None], int | None]] = {
    "late-loader": ({"straggler": "input", "input-bound": None}, 1),
    "few-workers": ({"input-bound": None}, None),
    "logging": ({"straggler": "stall", "host-stall": None}, 0),
    "item": ({"host-sync": None} if ON_GPUS else {"communication-bound": None}, None),
    "slow-exchange": ({"communication-bound": None}, None),
    "heavy-rank": ({"straggler": "compute"}, 1),
}


def profile(kind: str, processes: int, run_dir: Path) -> dict[str, Any]:
    """Run one script under `gpudiag profile -- torchrun`; return its row with the first finding and its verdict.

    `right` is the verdict. `lacks` has the ranks with incomplete measurements and the warnings that make them useless;
    None if there are none. `error` is the error of the run record, or the end of standard error if there is no record.
    """
    command = [
        sys.executable, "-m", "gpudiag", "profile", "--stop-after", "--output", str(run_dir), "--",
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(SCRIPT), kind,
    ]  # fmt: skip
    begin = time.monotonic()
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "SECONDS_TO_TRAIN": "120"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    run_file = run_dir / "run.json"
    run: dict[str, Any] = {"error": done.stderr[-400:], "ranks": []}
    if run_file.exists():
        run = json.loads(run_file.read_text(encoding="utf-8"))
    analysis_file = run_dir / "analysis.json"
    analysis = json.loads(analysis_file.read_text(encoding="utf-8")) if analysis_file.exists() else {"findings": []}
    first = next(iter(analysis["findings"]), None)
    doubts = [doubt["code"] for doubt in analysis.get("validity", [])]
    lacks = [f"rank {rank} of {processes}" for rank in range(processes) if not is_whole(kind, rank, run)]
    lacks += sorted({"different-steps", "no-step-marks", "mixed-runs"}.intersection(doubts))
    return {
        "kind": kind,
        "exit": done.returncode,
        "error": run["error"],
        "timed_ms": {r["rank"]: r["unprofiled"] and round(r["unprofiled"]["mean_ms"], 2) for r in run["ranks"]},
        "first": first and (first["code"], first["cause"], first["ranks"], first["recoverable_ms_per_step"]),
        "all": [(f["code"], f["ranks"], f["confidence"]) for f in analysis["findings"]],
        "doubts": doubts,
        "lacks": lacks or None,
        "right": done.returncode == 0 and run["error"] is None and not lacks and is_right(kind, first),
        "seconds": round(time.monotonic() - begin, 1),
    }


def is_whole(kind: str, rank: int, run: dict[str, Any]) -> bool:
    """Return whether a rank has unprofiled steps, the time spent fetching their batches, and both traces."""
    own_record = next((record for record in run["ranks"] if record["rank"] == rank), None)
    if own_record is None or own_record["error"] is not None or not own_record["timed"]:
        return False
    workers = (own_record["timed"].get("loader") or {"workers": 0})["workers"]
    needed = ("unprofiled", "trace", "light_trace")
    # gpudiag must have detected the number of DataLoader workers that the script has.
    fetching = own_record["timed"]["input_ms"] is not None and workers == (1 if kind == "few-workers" else 0)
    return fetching and all(own_record[name] for name in needed)


def is_right(kind: str, first: dict[str, Any] | None) -> bool:
    """Return True if `first` is a correct first finding for a script of kind `kind`.

    A finding with the correct code and cause may also name no rank.
    """
    causes, rank = EXPECTED[kind]
    if first is None or first["code"] not in causes:
        return False
    return causes[first["code"]] in (None, first["cause"]) and (rank is None or first["ranks"] in ([], [rank]))


def beside_own_profiler(runs: int) -> None:
    """Run `runs` jobs of two ranks whose script creates its own profiler, each in a different phase of gpudiag."""
    settings = Settings(run_dir="/nowhere", command=("python",), steps=5, warmup=2, patience_s=1e6)
    path = os.pathsep.join((str(ENTRY), str(ROOT)))
    around = {
        **os.environ,
        "PYTHONPATH": path,
        VARIABLE: settings.encode(),
        "KINETO_LOG_LEVEL": "99",
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run([sys.executable, "-c", FORKS, str(runs)], env=around, check=True)


def main() -> None:
    """Score each kind of script, print its row, and write the rows with the reasons for each verdict to rows.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", default=",".join(EXPECTED))
    parser.add_argument("--keep", type=Path, help="leave the run directories here")
    parser.add_argument("--own-profiler", type=int, metavar="RUNS")
    given = parser.parse_args()
    if given.own_profiler:
        beside_own_profiler(given.own_profiler)
        return
    with tempfile.TemporaryDirectory() as scratch:
        place, rows = given.keep or Path(scratch), []
        for kind in given.kinds.split(","):
            said = profile(kind, given.processes, place / kind)
            print(json.dumps(said), flush=True)
            why = [
                f"{name} {said[name]}"
                for name in ("exit", "error", "lacks", "timed_ms", "first")
                if said[name] is not None
            ]
            rows.append({"fault": kind, "verdict": "right" if said["right"] else "wrong", "why": why})
        (place / "rows.json").write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
