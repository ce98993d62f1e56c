"""Make the programs of `benchmarks/` importable by their plain names, as when one of them runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
