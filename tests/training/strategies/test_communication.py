"""Test that gpudiag's hook does not change DDP's gradients, and that buckets become ranges. The test uses
real gloo."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from gpudiag.training.strategies.registry import load_strategy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy


@pytest.fixture
def gloo(monkeypatch: pytest.MonkeyPatch) -> Iterator[PytorchStrategy]:
    """Yield an open strategy of one process; check that closing it ends the process group."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    strategy = load_strategy("gloo", torch.device("cpu"))
    strategy.open()
    yield strategy
    strategy.close()
    assert not dist.is_initialized()


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))


def test_gradients_equal_plain_ddp(gloo: PytorchStrategy) -> None:
    ours, plain = make_model(), make_model()
    batch = torch.randn(8, 512)
    for model in (gloo.wrap(ours), DistributedDataParallel(plain)):
        for _ in range(2):  # DDP rearranges its buckets after the first step
            model(batch).square().mean().backward()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_buckets_are_ranges_after_first_profiled_step(gloo: PytorchStrategy, tmp_path: Path) -> None:
    model = make_model()
    wrapped = gloo.wrap(model)
    batch = torch.randn(8, 512)
    for _ in range(2):
        wrapped(batch).mean().backward()
        gloo.exchange(wrapped)
    assert gloo.exchanged_bytes == []  # without a profiler the model is plain DDP
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            wrapped(batch).mean().backward()
            gloo.exchange(wrapped)
    assert sum(gloo.exchanged_bytes) == sum(4 * p.numel() for p in model.parameters())
    assert len(gloo.exchanged_bytes) > 1
    target = tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(str(target))
    names = [event.get("name") for event in json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]]
    assert names.count("gpudiag.exchange") == len(gloo.exchanged_bytes)


def test_independent_does_not_communicate() -> None:
    strategy = load_strategy("independent", torch.device("cpu"))
    model = make_model()
    assert strategy.wrap(model) is model
    strategy.exchange(model)
    assert strategy.exchanged_bytes == []
