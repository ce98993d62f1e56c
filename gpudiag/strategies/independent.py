"""`independent`: no exchange at all."""

from __future__ import annotations

from gpudiag.strategies.strategy import Strategy


class Independent(Strategy):
    """Each process trains alone; the difference to another strategy's step time is what that one's exchange costs.

    The processes still share a process group, over which nothing is sent, so that they enter each phase together
    and their traces say which rank they are.
    """


STRATEGY = Independent
