"""Test the shared-host all-reduce between real processes: sums are accurate, and missing ranks are errors."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from gpudiag.training.strategies.shared_host.native import library
from tests.training.strategies.processes import Job

pytestmark = pytest.mark.xdist_group("processes")

PROGRAM = Path(__file__).with_name("exchange_each.py")
ENGINES = ["torch", *(["native"] if library() is not None else [])]
#: The result is rounded once, from a sum in float32 or float64.
ROUNDING = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 2**-8, "float16": 2**-10, "bf16": 2**-8, "fp16": 2**-10}


RANKS = 3


@pytest.fixture(scope="module")
def well() -> list[dict[str, Any]]:
    """Return the answers of scenarios without failures, by engine, from one group of processes."""
    asked = {
        "scenarios": ["sums", "special", "many", "shapes", "as_hook", "no_room", "refused_pinning"],
        "engines": ENGINES,
    }
    with Job(PROGRAM, RANKS, asked) as job:
        return [job.answer(rank) for rank in range(RANKS)]


@pytest.fixture(scope="module", params=ENGINES)
def healthy(well: list[dict[str, Any]], request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    answers = [answer[request.param] for answer in well]
    assert {answer["many"]["engine"] for answer in answers} == {request.param}
    return answers


def test_sums_are_accurate_in_every_type(healthy: list[dict[str, Any]]) -> None:
    for answer in healthy:
        assert answer["sums"]["alike"]
        assert len(answer["sums"]["worst"]) == 12
        for key, off in answer["sums"]["worst"].items():
            # The sum is rounded to the transport type, and then to the gradients' type.
            assert off <= sum(ROUNDING[name] for name in key.split() if name != "None") * 1.01, key


def test_nan_and_infinity_are_preserved(healthy: list[dict[str, Any]]) -> None:
    for answer in healthy:
        assert set(answer["special"]) == {"None", "bf16", "fp16"}
        for odd in answer["special"].values():
            assert odd == {"7": "nan", "8": "inf", "9": "nan", "99999": "-inf"}


def test_slots_are_reused(healthy: list[dict[str, Any]]) -> None:
    assert all(answer["many"]["right"] for answer in healthy)


def test_unsupported_tensors_are_refused(healthy: list[dict[str, Any]]) -> None:
    for answer in healthy:
        refused, shape, value = (answer["shapes"][name] for name in ("refused", "shape", "value"))
        assert [text.split()[3] for text in refused] == ["int64", "complex64", "sparse"]
        assert (shape, value) == ([30, 40], 1.0)


def test_hook_averages_gradients_of_a_user_model(healthy: list[dict[str, Any]]) -> None:
    # Each of 4 samples adds the rank's number, so the mean over ranks 0 to 2 is 4.
    assert [answer["as_hook"]["gradients"] for answer in healthy] == [[4.0]] * RANKS


def test_too_little_memory_raises_on_every_rank(healthy: list[dict[str, Any]]) -> None:
    for answer in healthy:
        message = answer["no_room"]
        assert message["error"] == "HardwareMissingError"
        assert "there is no room for" in message["message"]
        assert "ulimit" in message["hint"]


def test_pinning_failure_on_one_rank_raises_on_all(healthy: list[dict[str, Any]]) -> None:
    assert all("cannot pin" in answer["refused_pinning"]["message"] for answer in healthy)


@pytest.fixture(scope="module", params=ENGINES)
def broken(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return the answers of ranks 0 and 1 when rank 2 left early, hung, sent a different size, or was killed."""
    asked = {"scenarios": ["leaves", "stuck", "unlike", "dies"], "engines": [request.param], "stuck_s": 2}
    with Job(PROGRAM, RANKS, asked) as job:
        answers = [job.answer(rank)[request.param] for rank in range(2)]
        assert job.processes[2].wait(60) == -signal.SIGKILL
    return answers


def messages(broken: list[dict[str, Any]], scenario: str, said: str) -> list[dict[str, Any]]:
    """Return the answers that contain `said`; a rank may also report that a peer has detected the failure."""
    outcomes = [answer[scenario] for answer in broken]
    direct = [told for told in outcomes if said in told["message"]]
    assert direct, outcomes
    assert all(told in direct or "has stopped communicating" in told["message"] for told in outcomes)
    return direct


def test_killed_rank_raises_on_other_ranks(broken: list[dict[str, Any]]) -> None:
    messages(broken, "dies", "rank 2 (process ")
    for answer in broken:
        assert answer["dies"]["seconds"] < 30  # the limit is one second, but the machine may be busy
        assert answer["dies"]["open"] == []
    assert not [entry.name for entry in Path("/dev/shm").iterdir() if "gpudiag" in entry.name]  # noqa: S108 # read only


def test_rank_with_fewer_steps_is_named(broken: list[dict[str, Any]]) -> None:
    texts = messages(broken, "leaves", "rank 2 has ended its training while rank")
    assert all("drop_last" in answer["hint"] for answer in texts)


def test_stuck_rank_is_named_after_timeout(broken: list[dict[str, Any]]) -> None:
    messages(broken, "stuck", "no gradient was communicated for 2 s: rank 2 has sent 1 pieces")


def test_different_tensor_sizes_raise_on_every_rank(broken: list[dict[str, Any]]) -> None:
    messages(broken, "unlike", "sends gradients of another size or type")
