"""Record a few steps with the TensorFlow profiler, and save them as one compressed XSpace."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from gpudiag.training.session.record import compress, contains
from gpudiag.training.session.step_counts import PROFILER_WARMUP_STEPS

#: Pattern of the name of an XSpace plane that contains GPU activity.
_DEVICE_ACTIVITY = rb"/device:GPU:\d"


class TensorflowWindow:
    """Record `active` steps of this process, on all its devices, after `PROFILER_WARMUP_STEPS` discarded steps.

    Args:
        path: path of the trace, `*.xplane.pb.gz`. The trace is first written to another file and renamed when complete.
        active: number of steps to record.
        on_gpu: True on GPUs. Then the discarded steps are recorded too, because the first recording must start CUPTI.
            On CPUs the discarded steps are not recorded, because each recording may crash or hang. At the end of a
            recording, TensorFlow 2.21 may damage its heap (`SplitEventTracker::FindStartAndMerge`) if an event began on
            one thread and ended on another, as the events of collectives do.
        kernel_only: on the host record the program's marks and CPU ops, but only few GPU ops.
    """

    def __init__(self, path: Path, *, active: int, on_gpu: bool, kernel_only: bool = False) -> None:
        self.path, self.saved = path, False
        self.device_activity: bool | None = None
        self.unmarked = ""
        self._kernel_only, self._active, self._on_gpu = kernel_only, active, on_gpu
        self._steps, self._records = 0, False
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Begin the discarded steps; raise RuntimeError if another profiler is recording."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._directory = tempfile.TemporaryDirectory(prefix=f".{self.path.name}.", dir=self.path.parent)
        if self._on_gpu:
            self._begin()

    def step(self) -> None:
        """End a step. The end of the last step saves the trace, which can take seconds."""
        self._steps += 1
        if self._steps == PROFILER_WARMUP_STEPS:
            if self._records:
                self._end(save=False)
            self._begin()
        elif self._steps == PROFILER_WARMUP_STEPS + self._active:
            self.stop()

    def stop(self) -> None:
        """End the recording. If the loop ended early, save the steps recorded so far."""
        if self._directory is None:
            return
        try:
            if self._records:
                self._end(save=self._steps > PROFILER_WARMUP_STEPS)
        finally:
            with contextlib.suppress(OSError):
                self._directory.cleanup()
            self._directory = None

    def discard(self) -> None:
        """End a failed recording, and remove its files. The method raises no exceptions."""
        self._steps = 0  # so that `stop` saves nothing
        with contextlib.suppress(Exception):
            self.stop()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _begin(self) -> None:
        """Start TensorFlow's profiler; raise RuntimeError if another profiler is recording."""
        import tensorflow as tf

        assert self._directory is not None  # noqa: S101 # set by start
        try:
            # The default level 2 records marks and all ops. Level 1 records marks, all CPU ops, and few GPU ops.
            options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=1) if self._kernel_only else None
            tf.profiler.experimental.start(self._directory.name, options=options)
        except tf.errors.AlreadyExistsError as error:
            raise RuntimeError("another TensorFlow profiler is recording; only one can at a time") from error
        self._records = True

    def _end(self, *, save: bool) -> None:
        """Stop TensorFlow's profiler. Keep its trace at `path` if `save` is set."""
        import tensorflow as tf

        assert self._directory is not None  # noqa: S101  # set by start
        self._records = False
        # Let TensorFlow save in any case. With save=False, version 2.21 frees buffers to which threads still write.
        tf.profiler.experimental.stop()
        # TensorFlow writes plugins/profile/<time>/<host>.xplane.pb.
        written = sorted(Path(self._directory.name).rglob("*.xplane.pb"))  # by time
        if not save:
            for path in written:
                path.unlink()
            return
        if not written:
            raise RuntimeError("the TensorFlow profiler wrote no trace")
        compressed = Path(self._directory.name) / "compressed"
        if self._on_gpu:
            self.device_activity = contains(written[-1], _DEVICE_ACTIVITY)
        compress(written[-1], compressed)
        compressed.replace(self.path)
        self.saved = True
