"""Interpret names of HLO operations, which XLA gives to kernels of GPUs and to the work of CPU devices."""

from __future__ import annotations

import re
from functools import cache

#: A collective, with its half (start or done) if it is asynchronous, and with the suffixes of copies that XLA made:
#: `all-reduce.5`, `all-gather-start.3.clone.1`, `collective-permute-done`.
_COLLECTIVE = re.compile(
    r"(?P<word>all-reduce|all-gather|reduce-scatter|(?:ragged-)?all-to-all|collective-permute|collective-broadcast)"
    r"(?:-(?P<half>start|done))?(?:\.(?:\d+|clone|remat\d*))*$"
)
_OPERATIONS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "send_recv",
    "collective-broadcast": "broadcast",
}


@cache
def hlo_operation(name: str) -> str | None:
    """Return the collective operation that an HLO operation of this name begins; None if it begins none.

    The second half of an asynchronous pair (`-done`) only waits, so that each pair counts once.

    >>> hlo_operation("all-gather-start.3"), hlo_operation("all-gather-done.3"), hlo_operation("fusion.3")
    ('all_gather', None, None)
    """
    match = _COLLECTIVE.match(name)
    return _OPERATIONS[match["word"]] if match and match["half"] != "done" else None


@cache
def communicates(name: str) -> bool:
    """Return whether an HLO operation of this name transfers data between devices, or waits for such a transfer.

    >>> communicates("all-gather-done.3"), communicates("all-reduce"), communicates("loop_add_fusion")
    (True, True, False)
    """
    return _COLLECTIVE.match(name) is not None
