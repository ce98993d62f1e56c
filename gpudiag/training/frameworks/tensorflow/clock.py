"""Step times under TensorFlow, which has no events to record on a device's stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from gpudiag.training.session.clock import StepClock
from gpudiag.training.session.timing.unprofiled_series import UnprofiledSeries


class SettledClock(StepClock):
    """The host's clock between two instants at which the devices had nothing left to do.

    A step's function returns when its kernels are launched, so that single marks say when the host got there. Every
    series of steps therefore begins and ends with a synchronization, the end of its last step being when the devices
    were done. The sum of a series, and so its mean, is the devices' own; how it is spread over the steps is the host's
    doing: where the host runs ahead, the first steps seem short and the last one long.
    """

    def __init__(self, settle: Any) -> None:
        super().__init__(time.perf_counter_ns, lambda begin, end: (end - begin) / 1e6, lambda: None)
        self._drain = settle
        self._drained = True

    def mark(self) -> None:
        """One step ends and the next begins here."""
        self._drained = False
        super().mark()

    def restart(self) -> None:
        """The next step begins here, on devices that have nothing to do."""
        self._drain()
        super().restart()
        self._drained = True

    def finish(self) -> None:
        """The last step ends when the devices are done."""
        if self._drained:
            return
        self._drain()
        self._marks[-1] = self._instant()
        self._drained = True

    def series(self) -> UnprofiledSeries:
        """Times of the steps since the last reading, which it forgets. Waits for the devices."""
        self.finish()
        return super().series()


def synchronized_clock(devices: Sequence[str]) -> SettledClock:
    """A clock for steps on these devices of this process."""
    return SettledClock(partial(settle, devices))


def settle(devices: Sequence[str]) -> None:
    """Return when devices of this process have nothing left to do.

    `tf.test.experimental.sync_devices` does that for all devices that TensorFlow knows, and fails in a job of several
    processes, where those of the others are among them.

    Args:
        devices: by their short names.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context  # there is no public way to its queue

    for device in devices:
        with tf.device(device):
            tf.raw_ops.SyncDevice()
    context.async_wait()
