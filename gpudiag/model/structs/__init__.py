"""Provide `msgspec`, or a replacement for training processes if the job's interpreter lacks it.

A command under `gpudiag profile --` may run in an interpreter that has PyTorch and none of gpudiag's other
dependencies. Modules that the command loads import `msgspec` from this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import msgspec
else:
    try:
        import msgspec

        msgspec.convert, msgspec.structs, msgspec.Meta  # noqa: B018 # checks for an incompatible msgspec
    except (ImportError, AttributeError):
        from gpudiag.model.structs import standard_library as msgspec

__all__ = ["msgspec"]
