"""List the recordings whose reports docs/examples shows; tests compare these reports with the program's output."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from tests.traces.pack import unpack

ROOT = Path(__file__).resolve().parents[1]
WHOLE = ROOT / "tests" / "traces" / "whole"


class DocumentedReport(NamedTuple):
    """A report on the page, with the command that prints it.

    Attributes:
        title: heading on the page.
        about: description of the recording.
        path: path in the command, from the repository's root; for a packed recording the name of its directory.
        golden: file in tests/golden.
        packed: path in `WHOLE` of a packed recording; "" if `path` exists.
        full: whether the report has all details.
    """

    title: str
    about: str
    path: str
    golden: str
    packed: str = ""
    full: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of the command after `gpudiag`."""
        return ("analyze", self.path, *(["--full"] if self.full else []))


REPORTS = (
    DocumentedReport(
        "VGG-16 without peer access",
        "Four H200s joined by NVLink, `NCCL_P2P_DISABLE=1`: the report begins with the cause, not with its symptom.",
        "tests/traces/vgg_p2poff",
        "report-vgg_p2poff.txt",
    ),
    DocumentedReport(
        "The same, with all details", "", "tests/traces/vgg_p2poff", "report-vgg_p2poff-full.txt", full=True
    ),
    DocumentedReport(
        "ResNet-50 whose rank 2 loads late",
        "Four H200s; rank 2's loader takes 40 ms longer.",
        "tests/traces/slow_loader_rank2",
        "report-slow_loader_rank2.txt",
    ),
    DocumentedReport(
        "A line of the loop that sleeps",
        "One H100, recorded by `gpudiag profile`, which times the lines of the source (unpacked from "
        "`tests/traces/whole/lines`).",
        "sleeps",
        "report-lines.txt",
        packed="lines/sleeps.npz",
    ),
    DocumentedReport(
        "ResNet-50 that scales well",
        "Four H200s, nothing wrong in the loop; its convolutions convert layouts.",
        "tests/traces/clean",
        "report-clean.txt",
    ),
    DocumentedReport("A hundred small layers", "Four H200s wait for the CPU.", "tests/traces/tiny", "report-tiny.txt"),
    DocumentedReport(
        "Two CPU processes under gloo",
        "Without any GPU the training threads take the devices' place.",
        "tests/traces/gloo_dataloader",
        "report-gloo_dataloader.txt",
    ),
    DocumentedReport(
        "Two pipeline stages, two replicas",
        "A small GPT on four CPU processes (unpacked from `tests/traces/whole/parallel`).",
        "pp2dp2_1f1b",
        "report-pp2dp2_1f1b.txt",
        packed="parallel/pp2dp2_1f1b.npz",
    ),
    DocumentedReport(
        "One rank of two",
        "An A100; the other rank was not recorded.",
        "tests/traces/public/nccl_data.json.gz",
        "report-nccl_data.txt",
    ),
    DocumentedReport(
        "TensorFlow on four GPUs",
        "ResNet-50 under MirroredStrategy on four H200s.",
        "tests/traces/tensorflow/mirrored_nccl.xplane.pb.gz",
        "report-tensorflow.txt",
    ),
    DocumentedReport(
        "A table of a pipeline-parallel job",
        "A production job of ByteDance on 8 workers.",
        "tests/traces/pipelines/ST.parquet",
        "report-table.txt",
    ),
)


def directory_of(report: DocumentedReport, scratch: Path) -> Path:
    """Return the directory to run the command in, and unpack a packed recording into `scratch`."""
    if not report.packed:
        return ROOT
    run = scratch / report.path
    packed = WHOLE / report.packed
    # The recording in `lines` also has a run record and a log of source lines, so it becomes a run directory.
    if not packed.is_relative_to(WHOLE / "lines"):
        unpack(packed, run)
        return scratch
    unpack(packed, run / "traces")
    shutil.copy(packed.with_name("sleeps-run.json"), run / "run.json")
    (run / "lines").mkdir()
    shutil.copy(packed.with_name("sleeps-lines.gz"), run / "lines" / "rank0.json.gz")
    return scratch
