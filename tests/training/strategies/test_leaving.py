"""Test that DDP models are deleted before their process group: a reducer that outlives it may wait forever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import run_forked

COMPILED = """
import os, sys, weakref
import torch
import torch.distributed as dist
from gpudiag.training.strategies.registry import load_strategy

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
strategy = load_strategy("gloo", torch.device("cpu"))

def train():
    model = strategy.wrap(torch.nn.Linear(8, 8))
    compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(2, 8)).sum().backward()
    strategy.exchange(compiled)
    return weakref.ref(model.reducer)

reducer = train()
leave = dist.destroy_process_group
dist.destroy_process_group = lambda: print("gone" if reducer() is None else "there") or leave()
strategy.close()
"""


@pytest.mark.processes
def test_compiled_model_is_deleted_before_its_process_group(tmp_path: Path) -> None:
    done = run_forked(COMPILED, str(tmp_path / "meeting"), GLOO_SOCKET_IFNAME="lo")
    assert (done.returncode, done.stdout) == (0, "gone\n"), done.stderr
