"""Test which processes of a command may train."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gpudiag.training.attach.command_process import may_train

LAUNCHER = "torch.distributed.elastic.agent.server.api"


@pytest.fixture
def launcher_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, LAUNCHER, importlib.import_module(LAUNCHER))


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("launcher_module")
def test_launcher_does_not_train() -> None:
    assert not may_train()


@pytest.mark.usefixtures("launcher_module", "process_group")
def test_process_with_a_group_may_train_although_it_imports_the_launcher() -> None:
    assert may_train()


def test_process_without_a_parent_may_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, LAUNCHER, raising=False)
    assert may_train()
