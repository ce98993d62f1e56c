"""Analyse tables of operations of pipeline-parallel jobs, for `gpudiag analyze`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.trace.operation_table import find_operation_table, read_operation_table

if TYPE_CHECKING:
    from gpudiag.model.pipeline.analysis import PipelineAnalysis
    from gpudiag.trace import ReadLimits


def analyze_operation_table(
    paths: Sequence[Path | str], *, limits: ReadLimits | None = None
) -> PipelineAnalysis | None:
    """Analyse the table of operations among the paths; None if they are traces.

    Raises:
        ExtraMissingError: pyarrow is not installed.
        UnreadableInputError: several tables, a damaged one, or one without a complete step.
    """
    path = find_operation_table(paths)
    if path is None:
        return None
    from gpudiag.analysis.pipeline.analyse import analyse_operations  # noqa: PLC0415 # only for tables

    return analyse_operations(read_operation_table(path, limits))
