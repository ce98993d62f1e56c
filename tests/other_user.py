"""Attempt operations as another user of this host, which is possible only for root."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

#: The user `nobody` on almost every system.
_OTHER = 65534

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


def as_another_user(attempt: Callable[[], object]) -> str:
    """Call `attempt` as another user; return the name of its exception, or its result as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(_OTHER)
            os.setuid(_OTHER)
            outcome = str(attempt())
        except BaseException as error:  # noqa: BLE001 # sent to the parent
            outcome = type(error).__name__
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text
