"""Whether this process runs what torch.compile has compiled, which does not bear being looked into."""

from __future__ import annotations

import sys
from typing import Any


def anything_compiled() -> bool:
    """Has torch.compile compiled something here, whichever part of the program? Imports nothing of it by itself."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return False
    # What is compiled as one graph (`fullgraph=True`) is not among the frames.
    return any(sum(dynamo.counters.get(kind, {}).values()) > 0 for kind in ("frames", "stats"))
