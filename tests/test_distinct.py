"""What NumPy gives, and no import of `numpy.ma` for it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.distinct import among, distinct

COLUMNS = st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1))


@given(COLUMNS)
def test_distinct_is_unique(values: list[int]) -> None:
    column = np.array(values, np.int64)
    assert distinct(column).tolist() == np.unique(column).tolist()


@given(COLUMNS, COLUMNS)
def test_among_is_isin(values: list[int], others: list[int]) -> None:
    column, wanted = np.array(values, np.int64), np.array(others, np.int64)
    assert among(column, wanted).tolist() == np.isin(column, wanted).tolist()


def test_numpy_ma_is_not_imported() -> None:
    program = (
        "import sys, numpy as np; from gpudiag.distinct import among, distinct; "
        "among(distinct(np.arange(9)), np.arange(3)); sys.exit('numpy.ma' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
