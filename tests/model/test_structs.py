"""Test that the replacement for msgspec and msgspec itself read each other's output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpudiag.model.run import RankRecord, RunRecord, StepsFound, StepTimes, UnprofiledSteps
from gpudiag.model.structs import standard_library as plain

TIMES = StepTimes(step_ms=(1.0, 2.5), mean_ms=1.75, median_ms=1.75, standard_error_ms=0.1, jitter_ms=0.2)
RANK = RankRecord(
    rank=1, local_rank=1, host="h\u00f6st", pid=7, device="cpu", device_name="CPU", unprofiled=TIMES,
    timed=UnprofiledSteps(input_ms=(0.5, 0.5), host_ms=(1.0, 2.0)), notes={"own-profiler": "it has one"}, run_id="ab",
)  # fmt: skip
RUN = RunRecord(
    created="2026-01-01T00:00:00Z", command=("python", "train.py"), workload="train.py", framework="pytorch",
    strategy="own", world_size=2, nodes=1, batch_size_per_device=None, ranks=(RANK,), status="complete",
    steps_found=StepsFound(by="optimizer", optimizer="Adam", optimizers=1, calls_per_step=1.0),
)  # fmt: skip

#: This program reads a run record from standard input without msgspec, changes a rank, and writes the record again.
WITHOUT_MSGSPEC = """
import sys
class NoMsgspec:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "msgspec":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoMsgspec())
from gpudiag.model.structs import msgspec
from gpudiag.model.run import RunRecord
from gpudiag.model.run_directory import encode_json
from gpudiag.model.job import Job, RunOptions
run = msgspec.json.decode(sys.stdin.buffer.read(), type=RunRecord)
rank = msgspec.structs.replace(run.ranks[0], notes={"read by": type(run).__mro__[1].__module__})
job = Job.chosen(RunOptions(workload="gpt", steps=3), strategy="ddp", device="cpu")
assert (job.steps, job.strategy, job.exchange.accumulate) == (3, "ddp", 1)
sys.stdout.buffer.write(encode_json(msgspec.structs.replace(run, ranks=(rank,))))
"""


@pytest.mark.processes
def test_records_are_the_same_without_msgspec() -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MSGSPEC],
        input=msgspec.json.encode(RUN),
        capture_output=True,
        cwd=root,
        check=True,
    )
    again = msgspec.json.decode(done.stdout, type=RunRecord)
    assert again.ranks[0].notes == {"read by": "gpudiag.model.structs.standard_library"}
    rank = msgspec.structs.replace(again.ranks[0], notes=RANK.notes)
    assert msgspec.structs.replace(again, ranks=(rank,)) == RUN


class Inner(plain.Struct, frozen=True, kw_only=True):
    """A struct with each kind of field that records have."""

    count: int
    share: float = 0.0
    names: tuple[str, ...] = ()
    by_name: dict[str, float | None] = plain.field(default_factory=dict)


def test_not_a_number_becomes_null() -> None:
    text = plain.json.encode(Inner(count=1, by_name={"a": float("nan"), "b": float("inf")}))
    assert json.loads(text)["by_name"] == {"a": None, "b": None}
    assert plain.json.decode(text, type=Inner).by_name == {"a": None, "b": None}


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "{}", '{"count": "1"}', '{"count": true}', '{"count": 1.5}', '{"count": 1, "names": "ab"}',
        '{"count": 1, "names": [1]}', '{"count": 1, "by_name": {"a": "x"}}', '{"count": 1, "share": null}',
    ],
)  # fmt: skip
def test_values_of_other_types_are_refused(text: str) -> None:
    with pytest.raises(plain.MsgspecError):
        plain.json.decode(text, type=Inner)


def test_unknown_fields_are_left_out() -> None:
    assert plain.json.decode('{"count": 1, "new": 2, "share": 3}', type=Inner) == Inner(count=1, share=3.0)
