"""Provide hostile training scripts, modelled on users' scripts, for `hostile_jobs.py`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

#: Beginning of each script: it defines `train`, which prints losses in full precision. The job's own lines replace
#: BODY.
PRELUDE = """
import os, signal, sys, time
import torch
torch.manual_seed(7)
torch.set_num_threads(1)

def train(steps=60, out=print, optimizer_class=torch.optim.SGD):
    model = torch.nn.Linear(32, 32)
    optimizer = optimizer_class(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
        optimizer.step()
        out(loss.item().hex())

BODY
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostileJob:
    """A training script, and how to start it.

    Attributes:
        body: lines that replace BODY in `PRELUDE`; the whole script if `prelude` is false.
        options: options of the Python interpreter.
        environment: additional environment variables.
        directory: current directory; "" for an empty directory of the run.
        temporary: name of the run's temporary directory.
    """

    name: str
    body: str
    prelude: bool = True
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    directory: str = ""
    temporary: str = "tmp"


JOBS = (
    HostileJob(name="raises-first", body="raise ValueError('not my day')"),
    HostileJob(name="sys-exit", body="train()\nsys.exit(3)"),
    HostileJob(name="os-exit", body="train()\nsys.stdout.flush()\nos._exit(4)"),
    HostileJob(name="sigkill", body="train(70)\nsys.stdout.flush()\nos.kill(os.getpid(), signal.SIGKILL)"),
    HostileJob(name="sigterm", body="train(20)\nsys.stdout.flush()\nos.kill(os.getpid(), signal.SIGTERM)"),
    HostileJob(name="sigsegv", body="train(25)\nsys.stdout.flush()\nos.kill(os.getpid(), signal.SIGSEGV)"),
    HostileJob(
        name="child-outlives",
        body="train()\nsys.stdout.flush()\nif os.fork() == 0:\n    time.sleep(40)\n    os._exit(0)",
    ),
    HostileJob(
        name="daemon",
        body="""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(40)
    os._exit(0)
os.wait()
train()
""",
    ),
    HostileJob(
        name="threads-train",
        body="""
import threading
threads = [threading.Thread(target=train, args=(60, lambda text: None)) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("joined")
""",
    ),
    HostileJob(
        name="closes-streams", body="train()\nsys.stdout.flush()\nos.close(0)\nos.close(1)\nos.close(2)\ntrain(5)"
    ),
    HostileJob(name="changes-directory", body="os.chdir('/')\ntrain()\nprint(os.getcwd())"),
    HostileJob(
        name="deleted-directory",
        body="train(1)\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\ntrain()\ntry:\n"
        "    os.getcwd()\nexcept FileNotFoundError:\n    print('gone')\n    sys.exit(5)",
    ),
    HostileJob(name="clears-environment", body="os.environ.clear()\ntrain()\nos.system('echo $PYTHONPATH.')"),
    HostileJob(
        name="own-signals",
        body="signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\nsignal.signal(signal.SIGALRM, "
        "lambda *_: print('alarm'))\ntrain()\nos.kill(os.getpid(), signal.SIGALRM)\n"
        "os.kill(os.getpid(), signal.SIGTERM)",
    ),
    HostileJob(
        name="own-excepthook",
        body="def hook(kind, error, trace):\n    print('mine', kind.__name__)\nsys.excepthook = hook\ntrain()\n1 / 0",
    ),
    HostileJob(
        name="traces-itself",
        body="""
calls = []
def trace(frame, event, argument):
    if frame.f_code.co_name == "train" and event == "call":
        calls.append(event)
sys.settrace(trace)
sys.setprofile(trace)
train()
print(len(calls), sys.gettrace() is trace, sys.getprofile() is trace)
""",
    ),
    HostileJob(
        name="own-profiler",
        body="""
train(10)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    train(5)
train(50)
print(sum(event.key == "aten::linear" for event in profiler.key_averages()))
""",
    ),
    HostileJob(name="recursion", body="train()\ndef deeper():\n    deeper()\ndeeper()"),
    HostileJob(name="memory-error", body="train()\nbytearray(1 << 60)"),
    HostileJob(name="keyboard-interrupt", body="train()\nsys.stdout.flush()\nraise KeyboardInterrupt"),
    HostileJob(name="binary-output", body="sys.stdout.buffer.write(bytes(range(256)) * 99)\ntrain()"),
    HostileJob(name="reads-stdin", body="train()\nprint(sys.stdin.read())"),
    HostileJob(name="huge-output", body="print('x' * 20_000_000)\ntrain()"),
    HostileJob(
        name="ascii-locale",
        body="train()\nprint(sys.stdout.encoding)\nprint('\\u00f6')",
        environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ),
    HostileJob(
        name="long-temporary",
        body="import tempfile\ntrain()\nos.mkdir(tempfile.gettempdir() + '/mine')\nprint(tempfile.gettempdir())",
        temporary="t" * 150,
    ),
    HostileJob(name="read-only-directory", body="train()\nopen('checkpoint', 'w')", directory="/proc"),
    HostileJob(
        name="looks-for-torch",
        body="import importlib.util\nassert importlib.util.find_spec('torch')\n" + PRELUDE.replace("BODY", "train()"),
        prelude=False,
    ),
    HostileJob(
        name="first-import-fails",
        body="""
import sys
sys.modules["torch._C"] = None
try:
    import torch
except ImportError:
    print("failed")
for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
    del sys.modules[name]
"""
        + PRELUDE.replace("BODY", "train()"),
        prelude=False,
    ),
    HostileJob(
        name="reloads",
        body="import importlib\ntrain(20)\nimportlib.reload(sys.modules['torch.optim.sgd'])\n"
        "train(60, print, sys.modules['torch.optim.sgd'].SGD)",
    ),
    HostileJob(
        name="runpy",
        body="open('inner.py', 'w').write('import __main__\\nprint(__name__)\\ntrain()\\nraise SystemExit(6)')\n"
        "import runpy\nrunpy.run_path('inner.py', init_globals={'train': train}, run_name='__main__')",
    ),
    HostileJob(
        name="spawned-workers",
        body="""
if __name__ == "__main__":
    from torch.utils.data import DataLoader
    data = DataLoader([float(each) for each in range(8)], num_workers=1, multiprocessing_context="spawn")
    train()
    print([float(batch) for batch in data])
""",
    ),
    HostileJob(
        name="at-exit",
        body="import atexit\natexit.register(lambda: print('last'))\natexit.register(lambda: 1 / 0)\ntrain()",
    ),
    HostileJob(
        name="warnings-are-errors", body="train()\nimport warnings\nwarnings.warn('no')", options=("-W", "error")
    ),
    HostileJob(name="isolated", body="train()", options=("-I",)),
    HostileJob(name="no-environment", body="train()", options=("-E",)),
    HostileJob(
        name="no-site",
        body=f"import sys\nsys.path += {sys.path!r}\n" + PRELUDE.replace("BODY", "train()"),
        prelude=False,
        options=("-S",),
    ),
    HostileJob(
        name="never-steps",
        body="model = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(60):\n    model(torch.randn(4, 8)).sum().backward()\n"
        "print(float(model.weight.grad.sum()).hex())\nsys.exit(7)",
    ),
    HostileJob(
        name="lbfgs",
        body="""
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, tolerance_grad=0.0, tolerance_change=0.0)
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    return loss
for _ in range(20):
    print(float(optimizer.step(closure)).hex())
""",
    ),
)
