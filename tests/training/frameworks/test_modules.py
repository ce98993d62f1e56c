"""Test marks of module calls in full traces; marking leaves the training unchanged."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.model.event import EventKind, Module, Trace
from gpudiag.model.run_directory import find_run_record
from gpudiag.trace import read_traces
from tests.forked import run_forked

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

MODELS = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import gpudiag
from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(16, width), nn.Dropout(0.1), nn.Linear(width, 16)

    def forward(self, x):
        return x + self.down(self.drop(torch.relu(self.up(x))))


class Refuses(nn.Module):
    def forward(self, x):
        raise ValueError("not this one")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.again, self.refuses = Block(8), Refuses()
        self.narrow, self.wide = nn.Linear(16, 2), nn.Linear(16, 20_000)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = checkpoint(self.again, x, use_reentrant=False)
        try:
            self.refuses(x)
        except ValueError:
            pass
        return nn.Tanh()(self.narrow(x)).sum() + self.wide(x).mean()


class Wrapper(nn.Module):
    # Like DistributedDataParallel, the wrapper stores the user's model in the attribute `module`.
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


def training(model):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    criterion = nn.L1Loss()

    def step():
        optimizer.zero_grad()
        loss = criterion(model(torch.randn(64, 16)), torch.tensor(1.0))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
"""

RECORDED = """
losses = {}
for recording in ("none", "light", "full"):
    torch.manual_seed(1)
    step = training(Wrapper(Net()))
    path = Path(sys.argv[1]) / recording / "rank0.pt.trace.json.gz"
    path.parent.mkdir()
    window = ProfiledWindow(path, active=3, cuda=False, kernel_only=recording == "light")
    if recording != "none":
        window.start()
    losses[recording] = []
    for _ in range(6):
        losses[recording].append(step())
        if recording != "none":
            window.step()
    if recording != "none":
        window.stop()
    assert not window.unmarked, window.unmarked
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl
print(json.dumps(losses))
"""


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    done = run_forked(MODELS + program, *words)
    assert done.returncode == 0, done.stderr
    return done


def calls(trace: Trace) -> list[str]:
    """Return the paths of marked calls in the first step, in order; calls recomputed in backward are labelled."""
    work, events = trace.modules, trace.events
    assert work is not None
    end = events.end_ns[trace.step_marks[0].row[0]]
    return [
        work.modules[module].path + " again" * back
        for row, module, back in zip(work.row.tolist(), work.module.tolist(), work.backward.tolist(), strict=True)
        if events.kind[row] == EventKind.MODULE and events.start_ns[row] < end
    ]


def test_module_marks_have_paths_and_change_no_loss(tmp_path: Path) -> None:
    losses = json.loads(run(RECORDED, str(tmp_path)).stdout)
    assert losses["full"] == losses["light"] == losses["none"]
    (light,), (full,) = (read_traces([tmp_path / recording]) for recording in ("light", "full"))
    assert light.modules is None
    assert not len(light.events.rows_of(EventKind.MODULE))
    assert full.modules is not None
    marked = set(full.modules.modules)
    assert {
        Module("Net", "", "Net"),
        Module("Net", "blocks.1.drop", "Dropout"),
        Module("L1Loss", "", "L1Loss"),
    } <= marked
    assert {module.root for module in marked} == {"Net", "L1Loss"}, (
        "wrappers, and modules created within a forward, are no roots"
    )
    block = ["", ".up", ".drop", ".down"]
    expected = [
        "",
        *(f"blocks.{number}{part}" for number in (0, 1) for part in block),
        *(f"again{part}" for part in block),
    ]
    expected += ["refuses", "narrow", "wide", "", *(f"again{part} again" for part in block)]
    assert calls(full) == expected


SESSION = """
step = training(Net())
with gpudiag.profile(sys.argv[1], steps=3, warmup=2, active=4, stop=True) as prof:
    for _ in prof.steps(range(100)):
        step()
"""


def test_analysis_attributes_time_to_modules(tmp_path: Path) -> None:
    run(SESSION, str(tmp_path))
    record = find_run_record([tmp_path])
    assert record is not None
    assert record.ranks[0].unmarked == ""
    modules = analyze([tmp_path]).modules
    assert modules is not None
    times = {time.path: time for time in modules.times if time.root == "Net"}
    assert times["wide"].forward_ms[0] > times["narrow"].forward_ms[0] > 0
    assert times["wide"].backward_ms[0] > times["narrow"].backward_ms[0] > 0
    # Another program may have delayed one of the two equal blocks.
    alike = min(times[path].backward_ms[0] for path in ("blocks.0", "blocks.1"))
    assert times["again"].backward_ms[0] > alike, "backward of a checkpoint includes the recomputed forward"
    assert [times[path].calls for path in ("", "wide", "again", "blocks.0.up")] == [1, 1, 1, 1]
    assert modules.outside_ms[0] > 0


COMPILED = """
net = Net()
counters = torch._dynamo.utils.counters["stats"]

def inside(marks):
    # A block that is first compiled while calls are marked must be compiled as one graph, and only once.
    block = torch.compile(net.blocks[0], fullgraph=True, backend="eager")
    before = counters["unique_graphs"]
    for _ in range(3):
        block(torch.ones(2, 16))
    marks.stop()
    for _ in range(3):
        block(torch.ones(2, 16))
    assert counters["unique_graphs"] == before + 1, counters

from gpudiag.training.frameworks.pytorch.marks import MarkedModules
marks = MarkedModules()
print(json.dumps(marks.start()))
inside(marks)
original = nn.Module.__call__
print(json.dumps(MarkedModules().start()))
assert nn.Module.__call__ is original
"""


def test_compiled_modules_are_not_marked() -> None:
    first, then = (json.loads(line) for line in run(COMPILED).stdout.splitlines())
    assert first == ""
    assert then.startswith("torch.compile has compiled part of the program")


CUT_SHORT = """
class Stops(nn.Module):
    def forward(self, x, window):
        window.stop()
        self.kept = [torch.ones(1) for _ in range(20_000)]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            pass
        return x

class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.stops, self.after = Stops(), nn.Linear(16, 16)

    def forward(self, x, window):
        return self.after(self.stops(x, window))

window = ProfiledWindow(Path(sys.argv[1]) / "rank0.json.gz", active=None, cuda=False)
window.start()
holds = Holds()
holds(torch.ones(2, 16), window)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
    holds.after(torch.ones(2, 16))
assert not [event for event in theirs.events() if "gpudiag" in event.name]
print("end")
"""


def test_recording_may_end_within_module_call(tmp_path: Path) -> None:
    assert run(CUT_SHORT, str(tmp_path)).stdout.split() == ["end"]
    (trace,) = read_traces([tmp_path / "rank0.json.gz"])
    assert trace.modules is not None
    assert {module.path for module in trace.modules.modules} == {"", "stops"}


OTHERS = """
from gpudiag.training.frameworks.pytorch.marks import MarkedModules

marks = MarkedModules()
marks.start()
ours = nn.Module.__call__

def theirs(module, *args, **kwargs):
    return ours(module, *args, **kwargs)

nn.Module.__call__ = theirs
marks.stop()
marks.stop()
assert nn.Module.__call__ is theirs, "what somebody else has put over it stays"
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
    Net()(torch.ones(2, 16))
assert not [event for event in recorded.events() if "gpudiag" in event.name]


class Odd(nn.Module):
    def named_children(self):
        raise RuntimeError("nobody may ask")

    def forward(self, x):
        return x + 1


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = Odd()
        self.odd.inner = nn.Linear(2, 2)

    def forward(self, x):
        return self.odd(x)

class Asked(nn.Module):
    # Like some trainers' modules: the program calls a method that returns the loss, and never the module itself.
    def __init__(self):
        super().__init__()
        self.net, self.lone = Wrapper(Net()), nn.Linear(16, 16)

    def loss(self, x):
        return self.net(self.lone(x))

nn.Module.__call__ = nn.Module._wrapped_call_impl
asked, lone, other = Asked(), nn.Linear(16, 16), nn.Linear(16, 16)
marks = MarkedModules()
marks.start()
assert Outer()(torch.zeros(1)).item() == 1
scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
assert scripted(torch.zeros(1, 2)).shape == (1, 2)

class FSDPModule:
    pass

# `fully_shard` gives a module a class like this one. DataParallel makes new replicas of a module in each step.
sharded = Net()
sharded.__class__ = type("FSDPNet", (FSDPModule, Net), {})
replica = nn.Tanh()._replicate_for_data_parallel()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
    sharded(torch.ones(2, 16))
    replica(torch.ones(2))
    asked.loss(other(lone(torch.ones(2, 16))))
names = {event.name for event in recorded.events() if "gpudiag" in event.name}
assert "gpudiag.module:Net/ (Net)" in names and "gpudiag.module:Net/wide (Linear)" in names, names
alone = ("Asked/lone (Linear)", "Asked/net.wide (Linear)", "Linear/ (Linear)", "Linear#2/ (Linear)")
assert {f"gpudiag.module:{name}" for name in alone} <= names, names
assert not [name for name in names if "FSDP" in name or "Tanh" in name], names
marks.stop()
"""


def test_modules_that_cannot_be_labelled_are_called() -> None:
    run(OTHERS)
