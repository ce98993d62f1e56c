"""Measure the CPU time that `gpudiag profile -- COMMAND` adds outside of the recorded steps.

    python benchmarks/attach_costs.py [starts] [steps] [processes] [backward]

`starts` measures whole processes that import nothing or import PyTorch, alternately with and without gpudiag. `steps`
measures alternating blocks of steps with and without gpudiag's hook in one process: first after gpudiag has recorded
its steps, then while gpudiag waits for a rank that never steps. `steps` also reports the cost of a call of the hook
minus that of an empty call. `processes` measures the steps of whole processes after the recorded steps, alternately
with and without gpudiag. `backward` is like `steps`, for optimizers that step within backward (one optimizer per
parameter, or one that steps for each parameter). On a GPU `backward` measures elapsed time instead of CPU time. Results
are medians over pairs of measurements, each with a 95 % interval.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpudiag.training.attach.command_process import VARIABLE, Settings
from gpudiag.training.attach.start import ENTRY

ROOT = Path(__file__).parents[1]
STARTS, PAIRS, PROCESSES = 15, 500, 6

#: A training program. The program's first argument is the number of pairs of blocks with and without the hook. If the
#: number is 0, the program measures one block of 400 steps.
TRAINS = """
import json, os, random, sys, time
import torch
import torch.distributed as dist
from torch.optim import optimizer as optimizers

torch.manual_seed(7)
torch.set_num_threads(1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "1":  # this rank never steps, so that rank 0 continues to wait for it
        dist.distributed_c10d._get_default_store().wait(["over"])
        sys.exit()
on_gpu, within = torch.cuda.is_available(), os.environ.get("WITHIN_BACKWARD")
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
data = torch.randn(128, 256)
if on_gpu:
    model, data = model.cuda(), data.cuda()
parameters = list(model.parameters())
optimizers_of = [torch.optim.SGD(parameters, lr=1e-3)]
if within == "each":
    optimizers_of = [torch.optim.SGD([parameter], lr=1e-3) for parameter in parameters]
if within:
    for number, parameter in enumerate(parameters):
        optimizer = optimizers_of[number % len(optimizers_of)]
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())

def now():
    if not on_gpu:
        return time.process_time_ns()
    torch.cuda.synchronize()
    return time.perf_counter_ns()

def block(steps):
    begin = now()
    for _ in range(steps):
        for optimizer in optimizers_of:
            optimizer.zero_grad()
        model(data).square().mean().backward()
        if not within:
            optimizers_of[0].step()
    return (now() - begin) / steps / 1e6

block(100)
pairs = []
hooks, entered = optimizers._global_optimizer_post_hooks, dict(optimizers._global_optimizer_post_hooks)
for _ in range(int(sys.argv[1])):
    times = {}
    for on in random.sample((False, True), 2):
        hooks.clear()
        hooks.update(entered if on else {})
        times[on] = block(8)
    pairs.append((times[False], times[True]))
def timed(*stepped):
    passed = []
    for functions in (nothing, entered):
        begin = time.perf_counter_ns()
        for function in functions.values():
            function(*stepped)
        passed.append(time.perf_counter_ns() - begin)
    calls.append(passed[1] - passed[0])

nothing, calls = {0: lambda *stepped: None}, []
hooks.clear()
hooks.update(dict.fromkeys(entered, timed))
block(4 * int(sys.argv[1]))
if calls:
    quarters = [sorted(calls)[len(calls) * quarter // 4] / 1e3 for quarter in (1, 2, 3)]
    sys.stderr.write("a call of the hook takes {:.1f} us more than none, half of them {:.1f} to {:.1f}".format(
        quarters[1], quarters[0], quarters[2]))
said = json.dumps(pairs or block(400))
if "RANK" in os.environ:
    dist.distributed_c10d._get_default_store().set("over", "1")
print(said)
"""


def median_with_interval(values: list[float]) -> tuple[float, float, float]:
    """Return (median, low, high): the order statistics low and high enclose the true median with 95 % confidence."""
    each = sorted(values)
    off = int(0.98 * len(each) ** 0.5)  # 1.96 standard deviations of the binomial distribution
    low, high = each[max(0, len(each) // 2 - off - 1)], each[min(len(each) - 1, len(each) // 2 + off)]
    return statistics.median(each), low, high


def difference(pairs: list[tuple[float, float]]) -> str:
    """Format the median of (second - first) over pairs of times in ms, and its interval in percent of the first."""
    middle, low, high = median_with_interval([second - first for first, second in pairs])
    base = statistics.median(first for first, _ in pairs)
    share = [100 * value / base for value in (middle, low, high)]
    return f"{base:8.3f} ms bare  {middle:+.4f} ms  {share[0]:+.2f} % [{share[1]:+.2f}, {share[2]:+.2f}]"


def environment_of(run_dir: str, *, entered: bool, **more: str) -> dict[str, str]:
    """Return the environment of a process with the variables `more`; without GPUs unless `more` makes some visible.

    If `entered` is true, the process loads gpudiag's hook when it starts, and writes recordings to `run_dir`.
    """
    # With this patience, gpudiag waits for a rank that never steps until the process ends.
    settings = Settings(run_dir=run_dir, command=("python",), steps=5, warmup=2, patience_s=1e6)
    inside = {}
    if entered:
        path = os.pathsep.join(filter(None, (str(ENTRY), os.environ.get("PYTHONPATH"))))
        inside = {"PYTHONPATH": path, VARIABLE: settings.encode(), "KINETO_LOG_LEVEL": "99"}
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", **inside, **more}


def starts() -> None:
    """Print CPU time and elapsed time of whole processes with and without gpudiag."""
    for program in ("pass", "import torch"):
        for _ in range(2):  # warm the caches
            subprocess.run([sys.executable, "-c", program], env=environment_of("/nowhere", entered=True), check=True)
        cpu: list[tuple[float, float]] = []
        wall: list[tuple[float, float]] = []
        for _ in range(STARTS):
            spent = {}
            for entered in random.sample((False, True), 2):
                before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                subprocess.run(
                    [sys.executable, "-c", program], env=environment_of("/nowhere", entered=entered), check=True
                )
                passed, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
                busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                spent[entered] = (1e3 * busy, 1e3 * passed)
            cpu.append((spent[False][0], spent[True][0]))
            wall.append((spent[False][1], spent[True][1]))
        for name, pairs in (("CPU time", cpu), ("time", wall)):
            least = [min(values) for values in zip(*pairs, strict=True)]
            print(
                f"{program:12} {name:8}  least {least[0]:.1f} and {least[1]:.1f} ms;  {difference(pairs)}", flush=True
            )


def steps(**more: str) -> None:
    """Print the cost of the hook per step, from blocks with and without it in one process.

    `more` has further environment variables of the training processes.
    """
    with tempfile.TemporaryDirectory() as scratch:
        words = [sys.executable, "-c", TRAINS, str(PAIRS)]
        after = subprocess.run(
            words, env=environment_of(scratch, entered=True, **more), check=True, capture_output=True, text=True
        )
        print(
            f"a step after the window   {difference(json.loads(after.stdout))}; {after.stderr.splitlines()[-1]}",
            flush=True,
        )
    with tempfile.TemporaryDirectory() as scratch:
        job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            subprocess.Popen(
                words,
                env=environment_of(scratch, entered=True, RANK=str(r), **job, **more),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for r in range(2)
        ]
        said, hook = ranks[0].communicate()
        ranks[1].communicate()
        print(f"a step before the window  {difference(json.loads(said))}; {hook.splitlines()[-1]}", flush=True)


def processes() -> None:
    """Print the step times of whole processes after their recorded steps, with and without gpudiag."""
    pairs = []
    for _ in range(PROCESSES):
        times = {}
        for entered in random.sample((False, True), 2):
            with tempfile.TemporaryDirectory() as scratch:
                done = subprocess.run(
                    [sys.executable, "-c", TRAINS, "0"],
                    env=environment_of(scratch, entered=entered), check=True, capture_output=True, text=True,
                )  # fmt: skip
            times[entered] = float(done.stdout)
        pairs.append((times[False], times[True]))
    print(f"a step of a whole process {difference(pairs)}", flush=True)


def backward() -> None:
    """Run `steps` with optimizers that step within backward."""
    for within in ("each", "one"):
        print(f"{within} optimizer within backward", flush=True)
        steps(WITHIN_BACKWARD=within, CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", "0"))


def main() -> None:
    for part in sys.argv[1:] or ("starts", "steps", "processes"):
        {"starts": starts, "steps": steps, "processes": processes, "backward": backward}[part]()


if __name__ == "__main__":
    main()
