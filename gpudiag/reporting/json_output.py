"""JSON for standard output: what `--json` prints, byte for byte what a run directory keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis
    from gpudiag.model.diff import Diff
    from gpudiag.model.facts import Facts
    from gpudiag.model.recommendation import Recommendation
    from gpudiag.model.results_table import ResultsTable
    from gpudiag.model.run import RunRecord
    from gpudiag.model.scaling import Scaling
    from gpudiag.model.selftest import Selftest


def encode(noun: Analysis | Diff | Facts | Recommendation | ResultsTable | RunRecord | Scaling | Selftest) -> bytes:
    """A noun as indented UTF-8 JSON with a newline at its end; figures that are none (NaN, infinite) become null."""
    return msgspec.json.format(msgspec.json.encode(noun), indent=2) + b"\n"
