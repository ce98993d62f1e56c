"""Describe published systems for the predictor: their models' tensors, and the strategy of each row.

The predictions themselves come from the released predictor: `predict` with the strategies of
`gpudiag/training/strategies/tensorflow1.py` on facts of the machine, and the verdict of `recommend --predict-only`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec

from gpudiag.app.recommend.verdict import from_predictions
from gpudiag.model.benchmarks.prediction import Candidate, Compute, Gradients, Prediction
from gpudiag.model.facts import Facts
from gpudiag.prediction import overlap
from gpudiag.training.strategies.predict import predict
from gpudiag.training.strategies.tensorflow1 import FRAMEWORK
from tests.machines import machine

HERE = Path(__file__).parent / "published"
MACHINES = {
    "7gforce": "7gforce",
    "az-2x-m60": "az-2x-m60",
    "DGX-1 (8x P100)": "dgx-1",
    "AWS p3.16xlarge (8x V100)": "gcp-8x-v100",
}
#: Relative lead below which a measurement is a tie.
TIE = 0.02


def _even(megabytes: float, count: int) -> list[int]:
    return [int(megabytes * 1e6 / count)] * count


def _dense(*widths: int) -> list[int]:
    return [size for a, b in pairwise(widths) for size in (4 * a * b, 4 * b)]


def _convolutions(*shapes: tuple[int, int, int]) -> list[int]:
    return [size for side, a, b in shapes for size in (4 * side * side * a * b, 4 * b)]


_VGG = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
#: Bytes of each variable in the order of forward. If only the total is known, the total is divided equally among the
#: variables. A convolution has one variable, and a batch norm has two.
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
    """A published run, as described by its row."""

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
    def devices(self) -> tuple[int, ...]:
        return tuple(int(word) for word in self.gpu_ids.split(",")) if self.gpu_ids else tuple(range(self.gpus))

    @property
    def candidate(self) -> Candidate:
        """Return the strategy of the row."""
        on_host = self.placement.startswith("cpu")
        if self.strategy in {"independent", "horovod"}:
            name = self.strategy
        elif self.strategy == "replicated":
            # In tf_cnn_benchmarks replicas run with or without NCCL; in other systems they run with NCCL.
            name = "replicated" if self.nccl.lower() != "true" and "rossum" in self.system else "replicated-nccl"
        elif "slice" in self.strategy or self.strategy == "multi_gpu_model":
            name = "sliced-cpu" if on_host else "sliced-gpu"
        else:
            name = "parameter-server-cpu" if on_host else "parameter-server-gpu"
        return Candidate(strategy=name, framework=FRAMEWORK)


@cache
def _facts(name: str, devices: tuple[int, ...]) -> Facts:
    """Return the facts of a machine with only the GPUs `devices` visible."""
    facts = machine(MACHINES[name])
    gpus = tuple(msgspec.structs.replace(gpu, visible=gpu.index in devices) for gpu in facts.gpus)
    return msgspec.structs.replace(facts, gpus=gpus)


def predicted(one: Run, compute_ms: float, candidates: Iterable[Candidate]) -> tuple[Prediction, ...]:
    """Return the predictions of `candidates` in the setting of the run, cheapest first."""
    backward = compute_ms * overlap.BACKWARD_SHARE
    compute = Compute(forward_ms=compute_ms - backward, backward_ms=backward, update_ms=0.0, step_ms=compute_ms)
    # Gradients are ready in the order of backward.
    model = Gradients(name=one.model, sizes=tuple(one.tensors[::-1]), compute=compute)
    return predict(_facts(one.machine, one.devices), model, candidates, one.gpus)


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a published table."""
    with (HERE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def run_of(row: dict[str, str], label: str | None = None) -> Run:
    """Return the run of a row of the targets, or of a row of the winners and one of the row's labels.

    A label has the form `strategy/placement/nccl=...`.
    """
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
    """Return setting → step time without communication, in ms.

    The time is that of the strategy `independent` on the same GPUs if it was run, else the published ideal step.
    """
    entries: dict[tuple[str, ...], float] = {}
    table = rows("cost_model_targets.csv")
    for row in table:
        entries.setdefault(tuple(row[key] for key in _KEYS), float(row["ideal_stepN_ms"]))
    for row in table:
        if row["strategy"] == "independent":
            entries[tuple(row[key] for key in _KEYS)] = float(row["stepN_ms"])
    return entries


def compute_ms(row: dict[str, str]) -> float:
    """Return the step time without communication in the setting of a row, in ms."""
    known = _compute().get(tuple(row[key] for key in _KEYS))
    if known is not None:
        return known
    # If no such time was published for the setting, assume slightly less than the winner's step.
    return 0.95e3 * float(row["gpus"]) * float(row["batch_per_gpu"]) / float(row["winner_ips"])


@dataclass(frozen=True, kw_only=True)
class Group:
    """The predictor's verdict on one group of strategies, and the truth.

    Attributes:
        row: the published row of the group.
        alike: whether all runs of the group use one strategy, so that the runs differ only by noise.
        truth: the strategy that won, or `tie`.
        as_fast: strategies that measurements cannot distinguish from the fastest.
        said: the strategy that `recommend` names, or `tie`.
        margin_percent: the lead of the predicted best strategy over the next.
        regret_percent: the measured slowdown of the named strategy (for a tie, of the preferred strategy) against the
        fastest.
    """

    row: dict[str, str]
    alike: bool
    truth: str
    as_fast: frozenset[str]
    said: str
    margin_percent: float
    regret_percent: float

    @property
    def strict(self) -> bool:
        """Return True if the verdict equals the truth: the winner's name, or a tie."""
        return self.said == self.truth

    @property
    def right(self) -> bool:
        """Return True if the verdict equals the truth, or names a strategy that is in effect as fast as the fastest."""
        return self.strict or self.said in self.as_fast


def groups() -> list[Group]:
    """Return all groups. A tie is a lead of less than 2 % or 2 standard deviations, or a lead among runs of the same
    strategy."""
    entries = []
    for row in rows("strategy_winners.csv"):
        # `all` is a list "label=samples per second; label=…", and labels contain "=" too.
        rates = {
            label: float(rate)
            for label, _, rate in (part.rpartition("=") for part in re.split(r"; (?=param|repl|horo)", row["all"]))
        }
        runs = {label: run_of(row, label) for label in rates}
        best: dict[str, float] = {}
        for label, rate in rates.items():
            name = runs[label].candidate.label
            best[name] = max(rate, best.get(name, 0.0))
        fastest = max(best.values())
        sigma = row["sigma_of_margin"]
        noise = sigma != "" and float(sigma) < 2
        second = runs[row["runner_up"]].candidate.label
        as_fast = {name for name, rate in best.items() if fastest / rate - 1 < TIE or (noise and name == second)}
        one = runs[row["winner"]]
        candidates = {run.candidate.label: run.candidate for run in runs.values()}.values()
        predictions = predicted(one, compute_ms(row), candidates)
        verdict = from_predictions(
            predictions, workload=row["model"], devices=one.gpus, batch_size=None, p2p=True, peer_access=None
        )
        steps = [prediction.step_ms or 0.0 for prediction in predictions]
        alike = len(best) == 1
        entries.append(
            Group(
                row=row,
                alike=alike,
                truth="tie" if alike or len(as_fast) > 1 else one.candidate.label,
                as_fast=frozenset(as_fast),
                said="tie" if alike or verdict.verdict == "tie" else verdict.recommended,
                margin_percent=0.0 if alike else 100 * (steps[1] / steps[0] - 1),
                regret_percent=100 * (fastest / best[verdict.recommended] - 1),
            )
        )
    return entries


def targets() -> list[tuple[dict[str, str], float, float]]:
    """Return (row, predicted step in ms, measured step in ms) of the targets on machines with known links."""
    entries = []
    for row in rows("cost_model_targets.csv"):
        known = row["machine"] in MACHINES and row["model"].removesuffix("_keras") in TENSORS
        if known and row["strategy"] != "independent":
            one = run_of(row)
            (prediction,) = predicted(one, compute_ms(row), [one.candidate])
            entries.append((row, prediction.step_ms or 0.0, float(row["stepN_ms"])))
    return entries
