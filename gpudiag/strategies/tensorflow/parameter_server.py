"""`parameter-server`: ParameterServerStrategy, with the servers that it needs in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def make(devices: Sequence[str]) -> Any:
    raise NotImplementedError
