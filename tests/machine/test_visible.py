"""Test CUDA_VISIBLE_DEVICES against CUDA's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.machine.inventory.gpus.visible import cuda_visible
from gpudiag.model.facts import Gpu, MigInstance

GPUS = tuple(
    Gpu(
        index=i,
        name="Example",
        uuid=f"GPU-{letter}111-0000",
        mig_instances=(MigInstance(uuid=f"MIG-{letter}222"),) if i == 3 else (),
    )
    for i, letter in enumerate("abcd")
)


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("  ", ()),
        ("-1", ()),
        ("0", (0,)),
        ("2,1", (2, 1)),
        (" 2 , 0 ", (2, 0)),
        ("0,2,-1,1", (0, 2)),  # the example in the CUDA programming guide
        ("0,9,1", (0,)),
        ("GPU-b111-0000", (1,)),
        ("GPU-c", (2,)),
        ("gpu-C111", (2,)),
        ("GPU-", ()),  # the prefix is ambiguous
        ("GPU-zzz,0", ()),
        ("MIG-d222", (3,)),
        ("MIG-GPU-a111-0000/1/0", (0,)),
        ("MIG-nothere", ()),
        ("NoDevFiles", ()),
        ("9" * 5000, ()),
        ("²", ()),
    ],
)
def test_entries_select_gpus_by_cudas_rules(value: str | None, indices: tuple[int, ...]) -> None:
    seen = cuda_visible(value, GPUS)
    assert seen.indices == indices
    assert (seen.note is None) == (value is None or len(indices) == len(value.split(",")))


def test_repeated_entries_are_noted() -> None:
    seen = cuda_visible("1,1", GPUS)
    assert seen.indices == (1,)
    assert seen.note is not None
    assert "twice" in seen.note


def test_gpus_of_different_models_get_a_note_on_cuda_order() -> None:
    mixed = (GPUS[0], Gpu(index=1, name="Another"))
    for value, order, noted in (
        ("1", None, True),
        ("1", "PCI_BUS_ID", False),
        ("GPU-a", None, False),
        (None, None, False),
    ):
        assert ("CUDA_DEVICE_ORDER" in (cuda_visible(value, mixed, order).note or "")) is noted


@given(st.text(max_size=40))
def test_any_value_of_the_variable_selects_existing_gpus_only(value: str) -> None:
    indices = cuda_visible(value, GPUS).indices
    assert set(indices) <= {0, 1, 2, 3}
    assert len(set(indices)) == len(indices)
