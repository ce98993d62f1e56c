"""What a process of the command knows of itself. Imports nothing that takes time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from gpudiag.training.attach.outcome.process_report import ProcessReporter
from gpudiag.training.attach.settings import Settings


class Entered:
    """What this process knows of itself, shared by the hook, the watch, and what measures.

    Attributes:
        told: how the command is to be measured.
        handler: called with each optimizer that has stepped; None when all is over, and before anything is hooked.
        measuring: steps of an optimizer are being measured.
        own_profiler: the program has made a profiler of its own.
        on_own_profiler: called when it makes one.
        looking: ends a short look at what the main thread runs, while there is one.
        stepped: an optimizer has stepped since the watch last looked.
        last_step_s: when the watch last saw that, of `time.monotonic`.
        calls: how often optimizers have stepped.
        report: what this process says of itself.
    """

    def __init__(self, told: Settings) -> None:
        self.told = told
        self.handler: Callable[[Any], None] | None = None
        self.measuring = False
        self.own_profiler = False
        self.on_own_profiler: Callable[[], None] | None = None
        self.looking: Callable[[], None] | None = None
        self.stepped = False
        self.last_step_s = time.monotonic()
        self.calls = 0
        self.report = ProcessReporter(told.reports)
        #: Threads that are making a profiler of gpudiag's.
        self.ours = threading.local()
