"""Compare findings for unchanged scripts of github.com/pytorch/examples under torchrun with the true costs of problems.

    python benchmarks/judge_examples.py DIR [--examples a,b] [--processes 4] [--keep DIR] [--each 60] [--seconds 540]

DIR contains the scripts at their paths in pytorch/examples (`imagenet/main.py`, `distributed/FSDP2/example.py`,
`distributed/minGPT-ddp/mingpt`, `distributed/tensor_parallelism`). Wheels in `DIR/wheels` and modules in `DIR/stubs`
are added to the scripts' search path, because minGPT needs `hydra-core`, `omegaconf` and `boto3`.

Each example runs under `gpudiag profile --stop-after -- torchrun`. Then each of its variants, which leave out a known
problem or communication, runs in the same way. The true cost of a problem is the example's unprofiled step time minus
that of its first variant. Examples whose main finding is not known in advance have the verdict `stated`.

The scripts of FSDP2 and tensor parallelism train for 10 steps, which is too few to measure, and have no option for
more. These scripts run as they are (`-short`), and a second time with a function `range` for which `range(10)` has more
iterations. The files are not changed.

`--keep DIR` receives `results.json` after each example, `reports.tar` (report and output of each run) and `runs-N.tar`
(the run directories of the examples, at most 15 MB a file).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from judge_scripts import Archives, RunError, judge, run

ROOT = Path(__file__).resolve().parents[1]
#: The maximum number of archives of run directories.
ARCHIVES = 6
#: This program runs a script with its options, in which `range(10)` has more iterations. `--no-logging` disables the
#: `logging` module.
LONGER = """
import logging, os, runpy, sys

if sys.argv[1] == "--no-logging":
    logging.disable()
    del sys.argv[1]
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
longer = lambda *bounds: range(10_000_000) if bounds == (10,) else range(*bounds)
runpy.run_path(sys.argv[0], init_globals={"range": longer}, run_name="__main__")
"""


@dataclass(frozen=True)
class Variant:
    """A way to run an example.

    Attributes:
        options: replace the example's options; `Scripts.command` inserts values for names in braces.
        processes: number of processes; None for that of `--processes`.
        logging: False to disable the `logging` module.
    """

    name: str = ""
    options: tuple[str, ...] = ()
    processes: int | None = None
    logging: bool = True


@dataclass(frozen=True)
class Example:
    """A script of pytorch/examples.

    Attributes:
        variants: further ways to run it; the first one lacks the problem.
        codes: right codes of the main finding; empty if it is not known in advance.
        launcher: `torchrun`, `gpu` (torchrun, and the option `--gpu` with the local rank), or `spawn` (the script
            starts its processes).
        longer: replace `range(10)` by a longer range.
        truth_of: another example, whose variants are used instead of `variants`.
    """

    name: str
    script: str
    options: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    problem: str | None = None
    codes: tuple[str, ...] = ()
    launcher: str = "torchrun"
    longer: bool = False
    truth_of: str | None = None


IMAGENET = ("-a", "resnet50", "--dummy", "--dist-backend", "nccl")
FEW, MANY = ("--workers", "{processes}"), ("--workers", "{many}")
SPAWN = ("--dist-url", "tcp://127.0.0.1:{port}", "--multiprocessing-distributed", "--world-size", "1", "--rank", "0")
GPT = ("data_config.path={text}", "data_config.truncate=1.0", "trainer_config.max_epochs=1000")
COMMUNICATION = "communication"
TENSOR = "distributed/tensor_parallelism/"
NO_LOGGING = (Variant("no-logging", logging=False),)
INPUT = ("input-bound", "straggler")
EXAMPLES = (
    Example(
        "imagenet",
        "imagenet/main.py",
        (*IMAGENET, "--dist-url", "env://", *FEW),
        (Variant("many-workers", (*IMAGENET, "--dist-url", "env://", *MANY)),),
        problem="one DataLoader worker per process",
        codes=INPUT,
        launcher="gpu",
    ),
    Example(
        "imagenet-spawn",
        "imagenet/main.py",
        (*IMAGENET, *SPAWN, *FEW),
        problem="one DataLoader worker per process",
        codes=INPUT,
        launcher="spawn",
        truth_of="imagenet",
    ),
    Example(
        "mingpt",
        "distributed/minGPT-ddp/mingpt/main.py",
        GPT,
        (Variant("one-process", GPT, processes=1),),
        problem=COMMUNICATION,
    ),
    Example(
        "mingpt-no-workers",
        "distributed/minGPT-ddp/mingpt/main.py",
        (*GPT, "trainer_config.data_loader_workers=0"),
        (Variant("workers", GPT),),
        problem="no DataLoader workers",
        codes=INPUT,
    ),
    Example(
        "fsdp2",
        "distributed/FSDP2/example.py",
        variants=(Variant("one-process", processes=1), Variant("prefetching", ("--explicit-prefetching",))),
        problem=COMMUNICATION,
        longer=True,
    ),
    Example(
        "tensor-parallel",
        TENSOR + "tensor_parallel_example.py",
        variants=NO_LOGGING,
        problem="rank 0 logs each step",
        longer=True,
    ),
    Example(
        "fsdp-tp",
        TENSOR + "fsdp_tp_example.py",
        variants=NO_LOGGING,
        problem="rank 0 logs each step",
        longer=True,
    ),
    Example("fsdp2-short", "distributed/FSDP2/example.py"),
    Example("tensor-parallel-short", TENSOR + "tensor_parallel_example.py"),
)


class Scripts:
    """The scripts with their dependencies, which are unpacked into `scratch`.

    Args:
        directory: the files of pytorch/examples.
        processes: number of processes of a run.
        each: maximum duration of a run in seconds.
    """

    def __init__(self, directory: Path, scratch: Path, processes: int, each: float) -> None:
        self.directory, self.scratch, self.processes, self.each = directory, scratch, processes, each
        self.longer = scratch / "longer.py"
        self.longer.write_text(LONGER, encoding="utf-8")
        self.text = scratch / "input.txt"
        self.text.write_text(make_text(), encoding="utf-8")
        site = scratch / "site"
        site.mkdir()
        for wheel in sorted((directory / "wheels").glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        path = os.pathsep.join(
            filter(None, (str(site), str(directory / "stubs"), str(ROOT), os.environ.get("PYTHONPATH")))
        )
        self.environment = {**os.environ, "PYTHONPATH": path, "HYDRA_FULL_ERROR": "1"}
        if "CUDA_VISIBLE_DEVICES" not in os.environ:
            self.environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(processes)))

    def command(self, example: Example, variant: Variant) -> list[str]:
        """Return the command of a variant, with its launcher."""
        values = {"processes": self.processes, "many": 8 * self.processes, "port": free_port(), "text": self.text}
        script = [str(self.directory / example.script), *(option.format(**values) for option in variant.options)]
        if example.longer:
            script = [str(self.longer), *([] if variant.logging else ["--no-logging"]), *script]
        if example.launcher == "spawn":
            return [sys.executable, *script]
        processes = variant.processes or self.processes
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        if example.launcher == "gpu":
            shell = 'exec "$@" --gpu "$LOCAL_RANK"'
            return [*launcher, "--no-python", "bash", "-c", shell, "bash", sys.executable, *script]
        return [*launcher, *script]

    def profile(self, example: Example, variant: Variant, folder: Path) -> dict[str, Any]:
        """Return the analysis of one run; its report is written to `report.txt` in the folder.

        Raises:
            RunError: the command failed or took too long.
            OSError: there is no analysis.
        """
        working = folder / "working"
        working.mkdir(parents=True)
        run_dir = folder / "run"
        program = [sys.executable, "-m", "gpudiag", "profile", "--stop-after", "--output", str(run_dir), "--"]
        command = [*program, *self.command(example, variant)]
        try:
            output = run(command, self.each, folder / "report.txt", folder=working, environment=self.environment)
        finally:
            shutil.rmtree(working, ignore_errors=True)
        (folder / "script.log").write_text(output, encoding="utf-8")
        analysis: dict[str, Any] = json.loads((run_dir / "analysis.json").read_text(encoding="utf-8"))
        return analysis


def make_text(size: int = 2_000_000) -> str:
    """Return a text of `size` characters, 59 of them different, for the character dataset of minGPT."""
    source = random.Random(0)  # noqa: S311
    words = [
        "".join(source.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,;:?!", k=6)) for _ in range(999)
    ]
    return " ".join(source.choices(words, k=size // 7 + 1))[:size]  # a word and its space have 7 characters


def free_port() -> int:
    """Return the number of a TCP port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def step_ms(analysis: dict[str, Any]) -> float | None:
    """Return the mean unprofiled step time in ms, or None if it was not measured."""
    mean: float | None = analysis["steps"]["unprofiled_mean_ms"]
    return mean


def try_variants(scripts: Scripts, example: Example, archives: Archives) -> dict[str, float | str | None]:
    """Return variant → unprofiled step time, or the reason why there is none; keep the variants' reports."""
    times = dict[str, float | str | None]()
    for variant in example.variants:
        name = f"{example.name}.{variant.name}"
        folder = scripts.scratch / name
        try:
            times[variant.name] = step_ms(scripts.profile(example, variant, folder))
        except (RunError, ValueError, OSError, KeyError) as error:
            times[variant.name] = f"{type(error).__name__}: {error}"
        shutil.rmtree(folder / "run", ignore_errors=True)
        archives.keep(name, folder)
    return times


def try_example(scripts: Scripts, example: Example, archives: Archives, truths: dict[str, Any]) -> dict[str, Any]:
    """Profile an example and its variants, and judge its main finding; errors of runs are part of the result.

    Read the step times of variants of earlier examples from `truths`, and add those of this example.
    """
    began = time.perf_counter()
    folder = scripts.scratch / example.name
    row: dict[str, Any] = {"example": example.name, "processes": scripts.processes, "problem": example.problem}
    analysis: dict[str, Any] | None = None
    try:
        analysis = scripts.profile(example, Variant(options=example.options), folder)
        row["steps"] = {key: analysis["steps"][key] for key in ("median_ms", "unprofiled_mean_ms", "analysed")}
    except (RunError, ValueError, OSError, KeyError) as error:
        row |= {"verdict": "failed", "profile_failed": f"{type(error).__name__}: {error}"}
        report = folder / "report.txt"
        lines = report.read_text(encoding="utf-8", errors="replace").splitlines() if report.exists() else []
        # The first message only describes the run.
        row["messages"] = [line for line in lines if line.startswith("gpudiag: ")][1:]
    row["left_out"] = archives.keep(example.name, folder)
    row["variants_ms"] = truths.get(example.truth_of or "", {}) or try_variants(scripts, example, archives)
    truths[example.name] = row["variants_ms"]
    without = next(iter(row["variants_ms"].values()), None)  # step time without the problem, or an error
    if analysis is not None:
        truth = dict[str, Any]()
        problem_ms = step_ms(analysis)
        if isinstance(without, float) and problem_ms is not None:
            truth = {"problem_ms": problem_ms, "costs_ms": round(problem_ms - without, 3)}
        row["truth"] = truth
        verdict = judge({"problem": example.problem or "none", "codes": example.codes}, truth, analysis)
        row |= verdict if example.codes else {**verdict, "verdict": "stated"}
    row["took_s"] = round(time.perf_counter() - began, 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="the repository's files")
    parser.add_argument("--examples", help="names with commas between them; default: all")
    parser.add_argument("--no-variants", action="store_true", help="profile the examples only")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="write results, reports and run directories here")
    parser.add_argument("--seconds", type=float, default=540.0, help="start no further example after this long")
    parser.add_argument("--each", type=float, default=60.0, help="end a run after this long")
    given = parser.parse_args()
    names = given.examples.split(",") if given.examples else [example.name for example in EXAMPLES]
    chosen = [example for example in EXAMPLES if example.name in names]
    if given.no_variants:
        chosen = [replace(example, variants=()) for example in chosen]
    began, rows, truths = time.perf_counter(), list[dict[str, Any]](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        keep = given.keep or scratch / "keep"
        keep.mkdir(parents=True, exist_ok=True)
        archives = Archives(keep, ARCHIVES)
        scripts = Scripts(given.directory.resolve(), scratch, given.processes, given.each)
        for example in chosen:
            if time.perf_counter() - began > given.seconds:
                print(f"no time left for {example.name}", flush=True)
                continue
            rows.append(try_example(scripts, example, archives, truths))
            (keep / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
