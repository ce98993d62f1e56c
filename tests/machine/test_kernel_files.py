from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.machine.inventory.host.kernel_files import numbers_in_mask
from gpudiag.model.facts import number_list, parse_cpu_list

NUMBERS = st.sets(st.integers(0, 1023), max_size=60)


@given(NUMBERS)
def test_formatting_and_parsing_are_inverse(numbers: set[int]) -> None:
    assert parse_cpu_list(number_list(numbers)) == tuple(sorted(numbers))


@given(NUMBERS)
def test_cpu_masks_are_parsed(numbers: set[int]) -> None:
    words = [0] * 16
    for number in numbers:
        words[number // 64] |= 1 << number % 64
    assert numbers_in_mask(words) == tuple(sorted(numbers))


@pytest.mark.parametrize("text", ["3-1", "a", "0-99999999", "1--2"])
def test_invalid_lists_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"list|invalid literal"):
        parse_cpu_list(text)
