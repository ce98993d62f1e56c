"""Count what `torch.compile` compiles while steps are measured, with the reason why it compiled again."""

from __future__ import annotations

import sys
from typing import Any

from source_lines.line_times import shortened
from source_lines.records import Compilation

#: Characters of a reason that are kept.
_MOST_REASON = 300


class CompilationWatch:
    """Collects new entries of PyTorch's compilation metrics.

    PyTorch keeps the last 64 entries only, so that they are read at each step's end (7 µs).
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str, int]] = set()
        self._found: dict[tuple[str, int, str], list[tuple[float, str]]] = {}
        self._read()
        self._found.clear()

    def step(self) -> None:
        """Note what was compiled since the last call."""
        self._read()

    def compilations(self) -> tuple[Compilation, ...]:
        """Return what was compiled, by function, the longest first."""
        rows = [
            Compilation(
                file=shortened(file),
                line=line,
                function=function,
                times=len(entries),
                ms=sum(took_ms for took_ms, _ in entries),
                reason=next((reason for _, reason in reversed(entries) if reason), ""),
            )
            for (file, line, function), entries in self._found.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.ms))

    def _read(self) -> None:
        # Importing it here would load the compiler into jobs that do not compile.
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        metrics = dynamo.get_compilation_metrics() if hasattr(dynamo, "get_compilation_metrics") else ()
        for entry in metrics:
            key = str(getattr(entry, "compile_id", "")), getattr(entry, "start_time_us", 0) or 0
            if key in self._seen or not getattr(entry, "is_forward", True):
                continue
            self._seen.add(key)
            took_s = getattr(entry, "entire_frame_compile_time_s", None) or 0.0
            reason = (getattr(entry, "recompile_reason", None) or "").partition("\n")[0].partition("  #")[0].strip()
            where = (
                str(getattr(entry, "co_filename", "") or ""),
                int(getattr(entry, "co_firstlineno", 0) or 0),
                str(getattr(entry, "co_name", "") or ""),
            )
            self._found.setdefault(where, []).append((1e3 * took_s, reason[:_MOST_REASON]))
