"""The published systems as the cost model sees them: their models' tensors, and how each exchanged its gradients.

What differs from PyTorch's strategies is the software, not the physics: TensorFlow 1 moves each tensor by itself, and

- `tf_cnn_benchmarks`' parameter server fetches all parameters before forward and sends gradients while backward runs;
  on GPUs it spreads variables over all of them;
- its NCCL all-reduces begin when backward is over, since they wait for everything that the host has launched by then;
- its replicas without NCCL are summed on the host and copied back, and each updates all its variables itself;
- Keras wrappers that slice a batch and concatenate outputs keep parameters on GPU 0 or on the CPU, and overlap nothing;
- an update costs one launch per variable on a GPU, and nothing there when the CPU does it.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from gpudiag.prediction import overlap, patterns
from gpudiag.prediction.paths import HOST, Paths
from gpudiag.prediction.transfers import run
from tests.machines import machine

HERE = Path(__file__).parent / "published"
MACHINES = {
    "7gforce": "7gforce",
    "az-2x-m60": "az-2x-m60",
    "DGX-1 (8x P100)": "dgx-1",
    "AWS p3.16xlarge (8x V100)": "gcp-8x-v100",
}
#: ms of a GPU and its host per launched update of one variable, in TensorFlow 1.
LAUNCH_MS = 0.020
#: Predictions closer than this are a tie.
TIE = 0.02


def _even(megabytes: float, count: int) -> list[int]:
    return [int(megabytes * 1e6 / count)] * count


def _dense(*widths: int) -> list[int]:
    return [size for a, b in pairwise(widths) for size in (4 * a * b, 4 * b)]


def _convolutions(*shapes: tuple[int, int, int]) -> list[int]:
    return [size for side, a, b in shapes for size in (4 * side * side * a * b, 4 * b)]


_VGG = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
#: Bytes of each variable in the order of forward. Where only the total is known, variables of equal size: one per
#: convolution and two per batch norm.
TENSORS: dict[str, list[int]] = {
    "alexnet": _convolutions((11, 3, 64), (5, 64, 192), (3, 192, 384), (3, 384, 384), (3, 384, 256))
    + _dense(9216, 4096, 4096, 1001),
    "vgg16": _convolutions(*((3, a, b) for a, b in pairwise(_VGG))) + _dense(25088, 4096, 4096, 1000),
    "overfeat": _convolutions((11, 3, 96), (5, 96, 256), (3, 256, 512), (3, 512, 1024), (3, 1024, 1024))
    + _dense(36864, 3072, 4096, 1001),
    "mlp_kuza55": _dense(8000, 4000, 2000, 500, 300, 1),
    "alexnet_cifar10": _convolutions((5, 3, 64), (5, 64, 64)) + _dense(2304, 384, 192, 11),
    "inception3": _even(95.4, 190),
    "resnet50": _even(102.2, 161),
    "trivial": _even(17.1, 6),
    "lenet5": _even(8.7, 8),
    "cifar_cnn": _even(5.0, 12),
    **{
        f"resnet{n}_cifar10": _even(mb, 3 * (n + 1) + 2)
        for n, mb in ((20, 1.085), (32, 1.866), (44, 2.647), (56, 3.429), (110, 6.944))
    },
    **{f"densenet{n}_k12_cifar10": _even(mb, 3 * (n - 1) + 2) for n, mb in ((40, 1.459), (100, 9.039))},
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published run, as its row describes it."""

    system: str
    machine: str
    model: str
    gpus: int
    gpu_ids: str
    strategy: str
    placement: str
    nccl: str

    @property
    def tensors(self) -> list[int]:
        return TENSORS[self.model.removesuffix("_keras")]

    @property
    def unoverlapped(self) -> bool:
        return "slice" in self.strategy or self.strategy == "multi_gpu_model"


@cache
def _paths(name: str, devices: tuple[int, ...]) -> Paths:
    return Paths(machine(MACHINES[name]), devices)


def exposed_ms(one: Run, compute_ms: float) -> float:
    """What the exchange of this run adds to a step of `compute_ms`."""
    if one.strategy == "independent":
        return 0.0
    devices = tuple(int(word) for word in one.gpu_ids.split(",")) if one.gpu_ids else tuple(range(one.gpus))
    paths = _paths(one.machine, devices)
    sizes = one.tensors
    count, total = len(sizes), sum(sizes)
    backward = compute_ms * overlap.BACKWARD_SHARE
    ready = overlap.ready_at([1.0] * count, backward)
    if one.strategy in {"replicated", "horovod"} and (one.nccl.lower() == "true" or "rossum" not in one.system):
        ring = run(patterns.ring(paths, sizes[::-1], [0.0] * count))
        return overlap.exposed_after(ring, 0.0) + LAUNCH_MS * count
    on_host = one.placement.startswith("cpu") or one.strategy == "replicated"
    if on_host:
        owners = [HOST] * count
    elif one.unoverlapped:
        owners = [0] * count
    else:
        owners = patterns.owners_by_size(sizes, one.gpus)
    fetched = overlap.exposed_after(run(patterns.fetch(paths, sizes, owners)), 0.0)
    at = [0.0] * count if one.unoverlapped else ready
    sent = run(patterns.deliver(paths, sizes[::-1], owners[::-1], at))
    sending = overlap.exposed_after(sent, 0.0 if one.unoverlapped else backward)
    if one.strategy == "replicated":
        updating = LAUNCH_MS * count
    elif on_host:
        # Read n gradients, write their sum; read it, the variable and write that. Hidden unless nothing is.
        updating = (one.gpus + 4) * total / (paths.host_memory() * 1e6) if one.unoverlapped else 0.0
    else:
        updating = LAUNCH_MS * count / (1 if one.unoverlapped else one.gpus)
    return fetched + sending + updating


def rows(name: str) -> list[dict[str, str]]:
    """A published table."""
    with (HERE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def run_of(row: dict[str, str], label: str | None = None) -> Run:
    """A row of the targets, or one of the labels of a row of the winners: `strategy/placement/nccl=...`."""
    if label is None:
        strategy, placement, nccl = row["strategy"], row["variable_placement"], row["nccl"]
    else:
        parts = re.sub(r"\(weights.*?\)", "", label.replace("slice on cpu", "")).split("/")
        nccl = parts.pop().removeprefix("nccl=") if parts[-1].startswith("nccl=") else ""
        strategy, placement = parts[0], parts[1] if len(parts) > 1 else ""
    if "slice" in strategy and placement.strip() in {"", "default"}:
        placement = "gpu"
    return Run(
        system=row["system"],
        machine=row["machine"],
        model=row["model"],
        gpus=int(row["gpus"]),
        gpu_ids=row["gpu_ids"],
        strategy=strategy,
        placement=placement.strip(),
        nccl=nccl,
    )


_KEYS = ("system", "machine", "gpus", "gpu_ids", "model", "batch_per_gpu", "data_source")


@cache
def _compute() -> dict[tuple[str, ...], float]:
    """Step without exchange of each setting: `independent` where it was run on the same GPUs, else the ideal step."""
    found: dict[tuple[str, ...], float] = {}
    table = rows("cost_model_targets.csv")
    for row in table:
        found.setdefault(tuple(row[key] for key in _KEYS), float(row["ideal_stepN_ms"]))
    for row in table:
        if row["strategy"] == "independent":
            found[tuple(row[key] for key in _KEYS)] = float(row["stepN_ms"])
    return found


def compute_ms(row: dict[str, str]) -> float:
    """A step of this row's setting without exchange, in ms."""
    known = _compute().get(tuple(row[key] for key in _KEYS))
    if known is not None:
        return known
    # No such run: what the winner takes is little more.
    return 0.95e3 * float(row["gpus"]) * float(row["batch_per_gpu"]) / float(row["winner_ips"])


@dataclass(frozen=True, kw_only=True)
class Group:
    """One group's verdict beside the truth."""

    row: dict[str, str]
    truth: str
    said: str
    margin_percent: float
    exposed: dict[str, float]

    @property
    def right(self) -> bool:
        """The same verdict: the winner's name, or a tie where it is one."""
        return self.said == self.truth

    @property
    def named(self) -> bool:
        """Right, or the winner named although its lead is within noise."""
        return self.right or self.said == self.row["winner"]

    @property
    def alike(self) -> bool:
        """All its strategies exchange the same bytes over the same path, as far as can be known."""
        return max(self.exposed.values()) - min(self.exposed.values()) < 1e-9


def groups() -> list[Group]:
    """All groups. A tie is a lead of less than 2 % or 2 standard deviations, measured or predicted."""
    found = []
    for row in rows("strategy_winners.csv"):
        compute = compute_ms(row)
        labels = [part.rpartition("=")[0] for part in re.split(r"; (?=param|repl|horo)", row["all"])]
        exposed = {label: exposed_ms(run_of(row, label), compute) for label in labels}
        order = sorted(exposed, key=lambda label: exposed[label])
        margin = (compute + exposed[order[1]]) / (compute + exposed[order[0]]) - 1
        sigma = row["sigma_of_margin"]
        tie = float(row["margin_pct"]) < 2 or (sigma != "" and float(sigma) < 2)
        found.append(
            Group(
                row=row,
                truth="tie" if tie else row["winner"],
                said="tie" if margin < TIE else order[0],
                margin_percent=100 * margin,
                exposed=exposed,
            )
        )
    return found


def targets() -> list[tuple[dict[str, str], float, float]]:
    """Rows of the targets on machines whose links are known, with predicted and measured step in ms."""
    return [
        (row, compute_ms(row) + exposed_ms(run_of(row), compute_ms(row)), float(row["stepN_ms"]))
        for row in rows("cost_model_targets.csv")
        if row["machine"] in MACHINES
        and row["model"].removesuffix("_keras") in TENSORS
        and row["strategy"] != "independent"
    ]
