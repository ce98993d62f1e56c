from __future__ import annotations

import pytest
import torch
from source_lines.compilations import CompilationWatch


@pytest.mark.long
def test_recompilations_are_counted_with_the_guard_that_failed() -> None:
    def scaled(values: torch.Tensor, factor: float) -> torch.Tensor:
        return values * factor

    compiled = torch.compile(scaled, backend="eager")
    compiled(torch.ones(3), 1.5)
    watch = CompilationWatch()
    for factor in (2.5, 3.5):
        compiled(torch.ones(3), factor)
        watch.step()
    (row,) = watch.compilations()
    assert (row.function, row.file.endswith("test_compilations.py")) == ("scaled", True)
    assert row.times >= 1
    assert row.ms > 0
    assert "factor" in row.reason


def test_a_job_without_compilation_has_none() -> None:
    watch = CompilationWatch()
    watch.step()
    assert watch.compilations() == ()
