"""Test that digests give the same analysis as their traces, for every recording and for large jobs."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import msgspec
import pytest

from gpudiag.app.analyze import analyze
from gpudiag.app.digests.write import digest
from gpudiag.model.run_directory import encode_json
from gpudiag.trace import ReadLimits, parallel, read_traces
from tests.traces.pack import unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _pytest.mark import ParameterSet

TRACES = Path(__file__).parents[2] / "traces"
MANY_RANKS = Path(__file__).parents[3] / "benchmarks" / "many_ranks.py"
WHOLE = TRACES / "whole"
JOBS = ("clean", "gloo_dataloader", "resnet50_dataloader", "slow_loader_rank2", "tiny", "vgg_p2poff")
SINGLE = sorted(
    path
    for folder in ("others", "public", "public2", "tensorflow", "tensorflow_exchange")
    for path in (TRACES / folder).glob("*.gz")
)


def analysed(paths: Sequence[Path]) -> bytes:
    """Return the JSON of an analysis without file paths."""
    analysis = analyze(paths)
    return encode_json(msgspec.structs.replace(analysis, source=msgspec.structs.replace(analysis.source, paths=())))


def assert_same_analysis(path: Path, directory: Path) -> None:
    digest([path], output=directory)
    assert _without_files(analysed([directory])) == _without_files(analysed([path]))


def _without_files(text: bytes) -> object:
    """Return the analysis without warnings that name files."""
    document = json.loads(text)
    document["validity"] = [warning for warning in document["validity"] if "/" not in warning["message"]]
    return document


def _most_apart(values: Sequence[str | Path]) -> list[ParameterSet]:
    """Return parameters of which every fourth runs in `make test`, and the others only in `.ci/nightly`."""
    return [pytest.param(value, marks=[pytest.mark.apart] if index % 4 else []) for index, value in enumerate(values)]


@pytest.mark.parametrize("name", _most_apart(JOBS))
def test_digests_of_a_recorded_job_give_the_same_analysis(name: str, tmp_path: Path) -> None:
    digest([TRACES / name], output=tmp_path)
    assert analysed([tmp_path]) == analysed([TRACES / name])


@pytest.mark.parametrize("path", _most_apart(SINGLE), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_digest_of_one_process_gives_the_same_analysis(path: Path, tmp_path: Path) -> None:
    assert_same_analysis(path, tmp_path / "digests")


def test_digests_replace_the_traces_of_a_run_directory(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(TRACES / "input_only", run)
    before = analysed([run])
    written = digest([run])
    assert written.directory == run / "digests"
    assert analysed([run]) == before
    shutil.rmtree(run / "traces")
    assert analysed([run]) == before
    assert analysed([run / "digests"]) == before


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt-nccl", pytest.param("gpt-ps-cpu", marks=pytest.mark.apart)])
def test_digests_replace_full_and_kernel_only_traces_of_a_run(name: str, tmp_path: Path) -> None:
    runs = json.loads((WHOLE / "exchanges" / "runs.json").read_text(encoding="utf-8"))
    run = tmp_path / "run"
    unpack(WHOLE / "exchanges" / f"{name}.npz", run / "traces")
    light = WHOLE / "exchanges" / f"{name}-light.npz"
    if light.is_file():
        unpack(light, run / "traces" / "light")
    (run / "run.json").write_text(json.dumps(runs[name]), encoding="utf-8")
    before = analysed([run])
    digest([run])
    shutil.rmtree(run / "traces")
    assert analysed([run]) == before


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["hot_ep4", *(pytest.param(name, marks=pytest.mark.apart) for name in ("pp2dp2_1f1b", "pp2dp2_interleaved"))],
)
def test_digests_of_a_parallel_job_keep_its_modules(name: str, tmp_path: Path) -> None:
    unpack(WHOLE / "parallel" / f"{name}.npz", tmp_path / "traces")
    assert all(trace.modules is not None for trace in read_traces([tmp_path / "traces"]))
    digest([tmp_path / "traces"], output=tmp_path / "digests")
    assert analysed([tmp_path / "digests"]) == analysed([tmp_path / "traces"])


def test_unusable_kernel_only_traces_are_reported_from_digests(tmp_path: Path) -> None:
    run = tmp_path / "run"
    unpack(WHOLE / "exchanges" / "gpt-nccl.npz", run / "traces")
    for path in sorted((run / "traces").iterdir())[1:]:
        path.unlink()
    (run / "traces" / "light").mkdir()
    (run / "traces" / "light" / "rank0.json").write_text("{", encoding="utf-8")
    runs = json.loads((WHOLE / "exchanges" / "runs.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps(runs["gpt-nccl"]), encoding="utf-8")
    written = digest([run])
    assert any("kernel-only trace cannot be used" in warning for warning in written.warnings)
    shutil.rmtree(run / "traces")
    assert b"kernel-only trace cannot be used" in analysed([run])


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the traces of a job with more ranks than are analysed in one process."""
    directory = tmp_path_factory.mktemp("many")
    command = [sys.executable, str(MANY_RANKS), str(directory), "--ranks", "66", "--fault", "1", "--late", "17"]
    subprocess.run([*command, "--from", str(TRACES / "gloo_dataloader")], check=True, timeout=300)
    return directory


@pytest.mark.processes
@pytest.mark.apart
def test_large_job_is_the_same_in_one_process_in_forks_and_from_digests(many: Path, tmp_path: Path) -> None:
    with mock.patch.object(parallel, "usable_cpus", return_value=1):
        alone = analysed([many])
    assert len(json.loads(alone)["ranks_present"]) == 66
    for cpus in (2, 3):
        with mock.patch.object(parallel, "usable_cpus", return_value=cpus):
            assert analysed([many]) == alone
    for workers in (1, 2):
        written = digest([many], output=tmp_path / str(workers), limits=ReadLimits(workers=workers))
        assert (len(written.digests), written.warnings) == (66, ())
        assert analysed([written.directory]) == alone
    contents = [{path.name: path.read_bytes() for path in (tmp_path / str(workers)).iterdir()} for workers in (1, 2)]
    assert contents[0] == contents[1]


@pytest.mark.processes
def test_rank_of_a_large_job_that_waits_is_found_from_digests(many: Path, tmp_path: Path) -> None:
    """Digests in another order give the same alignment of clocks, and the same ranks are simulated."""
    digest([many], output=tmp_path)
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert analysed(files) == analysed([many])


def test_traces_without_a_rank_keep_their_order(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    for number, name in enumerate(("host.1", "host.2")):
        document = json.loads(
            gzip.decompress((TRACES / "gloo_dataloader" / f"rank{number}.pt.trace.json.gz").read_bytes())
        )
        del document["distributedInfo"]["rank"]
        (traces / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    written = digest([traces])
    assert sorted(written.digests) == ["host.1.json.gpudiag-digest", "host.2.json.gpudiag-digest"]
    assert _without_files(analysed([traces / "digests"])) == _without_files(analysed([traces]))
