"""Test failures, missing device activity and warnings during the kernel-only and the full trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpudiag.commands.progress.run import RunProgress
from gpudiag.training.frameworks.pytorch.profiler import _DEVICE_ACTIVITY
from gpudiag.training.frameworks.tensorflow.profiler import _DEVICE_ACTIVITY as _TENSORFLOW_DEVICE_ACTIVITY
from gpudiag.training.session.agreement import Agreement
from gpudiag.training.session.clock import host_clock
from gpudiag.training.session.phases import Phases
from gpudiag.training.session.position import current_position
from gpudiag.training.session.progress import Progress, ProgressSender
from gpudiag.training.session.record import contains
from gpudiag.training.session.step_counts import PhaseSettings

if TYPE_CHECKING:
    from gpudiag.training.session.step_counts import TraceKind

TRACES = Path(__file__).parents[2] / "traces"


class FakeWindow:
    """Fake a recording that records nothing, and fails at a given step."""

    def __init__(self, *, fails_at: int | None = None, device_activity: bool | None = None) -> None:
        self.saved = False
        self.unmarked = ""
        self.device_activity: bool | None = None
        self.discarded = False
        self.steps = 0
        self._fails_at = fails_at
        self._activity = device_activity

    def start(self) -> None:
        if self._fails_at == 0:
            raise OSError("no space left on device")

    def step(self) -> None:
        self.steps += 1
        if self.steps == self._fails_at:
            raise OSError("no space left on device")
        if self.steps == 5:
            self.saved, self.device_activity = True, self._activity

    def stop(self) -> None:
        pass

    def discard(self) -> None:
        self.discarded = True


def run(windows: dict[TraceKind, FakeWindow], saves: list[dict[str, str]] | None = None) -> tuple[Phases, int]:
    """Run all phases of a session; return the phases and their number of steps.

    `saves` receives the notes of every saved record.
    """
    phases = Phases(
        PhaseSettings(steps=2, warmup=1, active=3),
        clock=host_clock(),
        agreement=Agreement(current_position(), None, timeout_s=1),
        progress=ProgressSender(0),
        changed=lambda: saves.append(dict(phases.notes)) if saves is not None else None,
        window=lambda recording: windows[recording],
        on_gpu=True,
    )
    return phases, sum(1 for _ in phases.run())


def test_kernel_only_recording_precedes_full_recording() -> None:
    windows: dict[TraceKind, FakeWindow] = {"light": FakeWindow(), "full": FakeWindow()}
    phases, steps = run(windows)
    assert phases.unprofiled_over
    assert phases.problem is None
    assert phases.saved == {"light", "full"}
    assert list(phases.recorded) == ["light", "full"]
    assert steps == 1 + 2 + 2 + 2 * 5


@pytest.mark.parametrize("fails_at", [0, 1, 3, 5])
def test_failed_kernel_only_recording_does_not_shift_full_recording(fails_at: int) -> None:
    windows: dict[TraceKind, FakeWindow] = {"light": FakeWindow(fails_at=fails_at), "full": FakeWindow()}
    phases, steps = run(windows)
    assert phases.unprofiled_over
    assert phases.problem is None
    assert phases.saved == {"full"}
    assert list(phases.recorded) == ["full"]
    assert steps == 1 + 2 + 2 + 2 * 5
    assert "no space left" in phases.notes["no-light-recording"]
    assert windows["light"].discarded == (fails_at > 0)


def test_failed_full_recording_raises_error() -> None:
    with pytest.raises(OSError, match="no space"):
        run({"light": FakeWindow(), "full": FakeWindow(fails_at=3)})


def test_missing_device_activity_is_reported_during_run(caplog: pytest.LogCaptureFixture) -> None:
    saves: list[dict[str, str]] = []
    windows: dict[TraceKind, FakeWindow] = {
        "light": FakeWindow(device_activity=False),
        "full": FakeWindow(device_activity=False),
    }
    phases, _ = run(windows, saves)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in phases.notes["missing-device-activity"]
    assert len([record for record in caplog.records if "no activity of the GPU" in record.message]) == 1
    # The note was saved before the full trace began.
    assert [("missing-device-activity" in notes) for notes in saves[:3]] == [False, False, True]
    phases, _ = run({"light": FakeWindow(device_activity=True), "full": FakeWindow(device_activity=True)})
    assert phases.notes == {}


def test_note_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress() as shown:
        for rank in range(2):
            for step in range(3):
                shown.heard(Progress(rank=rank, pid=1, phase="profiled", steps=step, note="no\x1b[31m activity"))
    said = capsys.readouterr().err
    assert said.count("activity") == 1
    assert "\x1b" not in said


def test_device_activity_is_found_in_pytorch_trace(tmp_path: Path) -> None:
    source = min((TRACES / "clean").glob("*.json.gz"))
    with_kernels = tmp_path / "with.json"
    with_kernels.write_bytes(gzip.decompress(source.read_bytes()))
    assert contains(with_kernels, _DEVICE_ACTIVITY)
    document = json.loads(with_kernels.read_bytes())
    host = [
        event for event in document["traceEvents"] if event.get("cat") not in {"kernel", "gpu_memcpy", "gpu_memset"}
    ]
    without = tmp_path / "without.json"
    without.write_text(json.dumps({**document, "traceEvents": host}))
    assert not contains(without, _DEVICE_ACTIVITY)


def test_pattern_across_chunk_boundary_is_found(tmp_path: Path) -> None:
    path = tmp_path / "large"
    word = b'"cat": "kernel"'
    path.write_bytes(b" " * ((1 << 20) - 5) + word + b" " * 100)
    assert contains(path, _DEVICE_ACTIVITY)
    path.write_bytes(b" " * (3 << 20))
    assert not contains(path, _DEVICE_ACTIVITY)


def test_device_activity_is_found_in_xspace(tmp_path: Path) -> None:
    source = TRACES / "tensorflow" / "mirrored_nccl.xplane.pb.gz"
    plain = tmp_path / "space"
    plain.write_bytes(gzip.decompress(source.read_bytes()))
    assert contains(plain, _TENSORFLOW_DEVICE_ACTIVITY)
