"""Large imports are made without garbage collections, and change nothing in whether a program collects."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from gpudiag.training.jobs.importing import without_collections

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _collects_again() -> Iterator[None]:
    yield
    gc.enable()


def test_nothing_is_collected_until_it_is_over() -> None:
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_also_when_it_fails() -> None:
    with pytest.raises(ImportError), without_collections():
        raise ImportError
    assert gc.isenabled()


def test_who_turned_collections_off_keeps_them_off() -> None:
    gc.disable()
    with without_collections():
        pass
    assert not gc.isenabled()
