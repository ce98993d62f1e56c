"""Six slow scripts that know nothing of gpudiag, each under `gpudiag profile -- torchrun`: is it found what is wrong?

    python benchmarks/attach_scripts.py [--processes 2] [--kinds late-loader,item] [--keep DIR] [--own-profiler 60]

With --own-profiler: so many jobs whose script makes a profiler of its own beside gpudiag's, and how they end.
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

from gpudiag.training.attach.settings import VARIABLE, Settings
from gpudiag.training.attach.start import ENTRY

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "training" / "attach" / "slow_scripts.py"
#: Each job's two ranks are forks of one process that has imported PyTorch and was entered: a fork begins anew.
FORKS = """
import dataclasses, os, pathlib, shutil, socket, sys, tempfile
from gpudiag.training.attach import entered
from tests.training.attach import scripts

for number in range(int(sys.argv[1])):
    before, place = number % 48, tempfile.mkdtemp()  # of some 40 steps that finding, timing and both recordings take
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [os.fork()]
    if ranks[0]:
        ranks.append(os.fork())
    if 0 in ranks:
        sys.stdout = open(f"{place}/said{len(ranks)}", "w")
        os.environ.update(RANK=str(len(ranks) - 1), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ["BEFORE"] = str(before)
        told = dataclasses.replace(entered._entered.told, run_dir=place)
        entered._entered = entered._made(told)
        scripts.settle()
        scripts.own_profiler(60)
        sys.exit()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    lines = [len(open(f"{place}/said{rank}").readlines()) for rank in (1, 2)]
    traces = sorted(path.parent.name for path in pathlib.Path(place).glob("traces/**/*.gz"))
    print(f"own profiler after {before:2} steps: exit codes {codes}, {lines} of 61 lines, {traces}", flush=True)
    shutil.rmtree(place)
"""

#: By kind, the codes that are right for it, and the rank that is to blame where there is one. Without GPUs no device is
#: waited for, so that `.item()` costs nothing there.
EXPECTED = {
    "late-loader": (("straggler", "input-bound"), 1),
    "few-workers": (("input-bound",), None),
    "logging": (("straggler", "host-stall"), 0),
    "item": (("host-sync",), None),
    "slow-exchange": (("communication-bound",), None),
    "heavy-rank": (("straggler",), 1),
}


def profile(kind: str, processes: int, run_dir: Path) -> dict[str, object]:
    """Run one and say what came of it."""
    command = [
        sys.executable, "-m", "gpudiag", "profile", "--stop-after", "--output", str(run_dir), "--",
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(SCRIPT), kind,
    ]  # fmt: skip
    begin = time.monotonic()
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "SECONDS_TO_TRAIN": "120"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    run = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    analysis_file = run_dir / "analysis.json"
    analysis = json.loads(analysis_file.read_text(encoding="utf-8")) if analysis_file.exists() else {"findings": []}
    codes, rank = EXPECTED[kind]
    first = next(iter(analysis["findings"]), None)
    right = (
        first is not None and first["code"] in codes and (rank is None or rank in first["ranks"] or not first["ranks"])
    )
    return {
        "kind": kind,
        "exit": done.returncode,
        "error": run["error"],
        "timed_ms": {r["rank"]: r["unprofiled"] and round(r["unprofiled"]["mean_ms"], 2) for r in run["ranks"]},
        "first": first and (first["code"], first["cause"], first["ranks"], first["recoverable_ms_per_step"]),
        "all": [(f["code"], f["ranks"], f["confidence"]) for f in analysis["findings"]],
        "doubts": [doubt["code"] for doubt in analysis.get("validity", [])],
        "right": right,
        "seconds": round(time.monotonic() - begin, 1),
    }


def beside_own_profiler(runs: int) -> None:
    """Jobs of two processes whose script makes a profiler of its own, each at another point of what gpudiag does."""
    told = Settings(run_dir="/nowhere", command=("python",), steps=5, warmup=2, patience_s=1e6)
    path = os.pathsep.join((str(ENTRY), str(ROOT)))
    around = {
        **os.environ,
        "PYTHONPATH": path,
        VARIABLE: told.encode(),
        "KINETO_LOG_LEVEL": "99",
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run([sys.executable, "-c", FORKS, str(runs)], env=around, check=True)


def main() -> None:
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
        for kind in given.kinds.split(","):
            print(json.dumps(profile(kind, given.processes, (given.keep or Path(scratch)) / kind)), flush=True)


if __name__ == "__main__":
    main()
