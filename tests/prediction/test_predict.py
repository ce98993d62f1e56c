"""Test predictions on recorded machines: laws for any model, and limits of the machines."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.benchmarks.prediction import Candidate, Compute, Gradients, Prediction
from gpudiag.prediction.curves import Curve
from gpudiag.training.strategies.predict import finalists_of, predict
from gpudiag.training.strategies.pytorch.fsdp import _stalls
from gpudiag.training.strategies.registry import strategies
from tests.machines import machine

COMPUTE = Compute(forward_ms=6.0, backward_ms=12.0, update_ms=1.5, step_ms=19.5)
#: Gradients like VGG-16's: almost all bytes are in three tensors that are ready first.
LARGE = Gradients(
    sizes=(16_384_000, 67_108_864, 411_041_792, *[4_000_000] * 13), compute=COMPUTE, batch_size=64, input_bytes=1 << 20
)
#: All strategies that gpudiag may recommend.
EVERY = tuple(Candidate(strategy=name) for name, strategy in strategies().items() if strategy.candidates(None))
MACHINES = ("h200x4", "7gforce", "7gforce-v2", "az-2x-m60", "az-4x-m60", "dgx-1", "patrick-4x")


def _by_name(found: tuple[Prediction, ...]) -> dict[str, Prediction]:
    return {prediction.candidate.label: prediction for prediction in found}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("p2p", [True, False])
def test_no_communication_is_the_fastest_prediction(name: str, p2p: bool) -> None:
    facts = machine(name)
    for devices in range(1, len(facts.gpus) + 1):
        predictions = predict(facts, LARGE, EVERY, devices, p2p=p2p)
        assert {prediction.candidate for prediction in predictions} == set(EVERY)
        for prediction in predictions:
            assert prediction.step_ms is not None
            assert prediction.step_ms >= COMPUTE.step_ms
            assert prediction.reason
        assert [prediction.exposed_ms for prediction in predictions] == sorted(
            prediction.exposed_ms for prediction in predictions
        )


@pytest.mark.parametrize(
    ("name", "strategy"), list(itertools.product(MACHINES, ("nccl", "gloo", "cpu-reduce", "ps-gpu")))
)
def test_twice_the_bytes_never_cost_less(name: str, strategy: str) -> None:
    facts = machine(name)
    double = Gradients(sizes=tuple(2 * size for size in LARGE.sizes), compute=COMPUTE)
    once, twice = (predict(facts, model, [Candidate(strategy=strategy)], 2)[0] for model in (LARGE, double))
    assert twice.exchange_ms >= once.exchange_ms
    assert twice.exposed_ms >= once.exposed_ms


def test_sums_through_the_host_beat_the_ring_without_peer_access() -> None:
    candidates = [*EVERY, Candidate(strategy="cpu-reduce", compress="bf16")]
    near, far = (_by_name(predict(machine("h200x4"), LARGE, candidates, 4, p2p=p2p)) for p2p in (True, False))
    assert near["nccl"].exposed_ms < near["cpu-reduce"].exposed_ms
    assert far["cpu-reduce"].exposed_ms < far["nccl"].exposed_ms
    assert far["cpu-reduce --compress bf16"].exposed_ms < far["cpu-reduce"].exposed_ms
    assert "no peer access" in far["nccl"].reason


def test_unknown_and_impossible_strategies_come_last() -> None:
    predictions = predict(
        machine("h200x4"), LARGE, [Candidate(strategy="smoke-signals"), *EVERY], 4, cannot={"fsdp": "it is Sunday"}
    )
    assert {prediction.candidate.strategy for prediction in predictions[-2:]} == {"smoke-signals", "fsdp"}
    assert {prediction.cannot for prediction in predictions[-2:]} == {
        "gpudiag has no model of its cost",
        "it is Sunday",
    }


def test_finalists_are_the_preferred_the_best_and_those_within_the_error() -> None:
    predictions = predict(machine("h200x4"), LARGE, EVERY, 4, p2p=False)
    chosen = finalists_of(predictions, 2)
    assert chosen[0] == Candidate(strategy="nccl")
    assert chosen[1] == next(
        prediction.candidate for prediction in predictions if prediction.candidate.strategy != "independent"
    )
    assert len(set(chosen)) == len(chosen) > 1
    assert all(candidate.strategy != "independent" for candidate in chosen)


def test_prediction_names_missing_measurements() -> None:
    (found,) = predict(machine("dgx-1"), LARGE, [Candidate(strategy="ps-cpu")], 8)
    assert "host link" in found.assumed


def _one(candidate: Candidate, model: Gradients) -> Prediction:
    (found,) = predict(machine("h200x4"), model, [candidate], 4)
    return found


def test_host_bound_device_hides_communication() -> None:
    """All three jobs have the same device work, but the slow host of two jobs makes their steps longer."""
    bound, slow, idle = (
        Gradients(
            sizes=(30_000_000, 60_000_000),
            compute=Compute(forward_ms=0.5, backward_ms=1.0, update_ms=0.2, step_ms=step_ms),
        )
        for step_ms in (1.7, 2.0, 9.0)
    )
    nccl = Candidate(strategy="nccl")
    exposed = _one(nccl, bound).exposed_ms
    assert exposed > 0.3
    assert _one(nccl, slow).exposed_ms == pytest.approx(exposed - 0.3)
    assert _one(nccl, idle).exposed_ms == 0.0


def test_fsdp_waits_for_exposed_parameters() -> None:
    """Compute hides communication that is spread over backward. Communication that precedes all compute is exposed."""
    compute = Compute(forward_ms=20, backward_ms=40, update_ms=0, step_ms=60)
    even = Gradients(sizes=(60_000_000,) * 10, ready=tuple(i / 10 for i in range(1, 11)), compute=compute, blocks=10)
    first = Gradients(sizes=(600_000_000,), ready=(1.0,), compute=compute, blocks=1)
    fsdp = Candidate(strategy="fsdp")
    hidden = predict(machine("h200x4"), even, [fsdp], 4, p2p=False)[0]
    stalled = predict(machine("h200x4"), first, [fsdp], 4, p2p=False)[0]
    assert hidden.exchange_ms == pytest.approx(stalled.exchange_ms)
    assert stalled.exposed_ms > hidden.exposed_ms + 0.5 * stalled.exchange_ms


def test_fsdp_cost_includes_hooks_of_many_small_units() -> None:
    compute = Compute(forward_ms=0.5, backward_ms=1.0, update_ms=0.2, step_ms=1.8)
    few = Gradients(sizes=(1_000_000,) * 10, compute=compute, blocks=2)
    many = Gradients(sizes=(1_000_000,) * 10, compute=compute, blocks=10)
    fsdp = Candidate(strategy="fsdp")
    assert (_one(fsdp, many).step_ms or 0) > (_one(fsdp, few).step_ms or 0) + 8


@given(
    st.lists(st.tuples(*(st.floats(0.0, 50.0) for _ in range(3))), min_size=1, max_size=12),
)
def test_stalls_are_at_least_the_first_gather_and_at_most_all_transfers(
    parts: list[tuple[float, float, float]],
) -> None:
    gathers, work, scatters = (list(column) for column in zip(*parts, strict=True))
    stalled = _stalls(gathers, work, scatters)
    assert gathers[0] - 1e-6 <= stalled <= sum(gathers) + sum(scatters) + 1e-6


def test_nearly_equal_sizes_give_no_slope() -> None:
    """Two nearly equal sizes (28.3157 and 28.3208 MB) took 1532.6 and 1532.4 us. 411 MB must take a proportional
    time."""
    curve = Curve({1_111_168: 0.262, 28_315_648: 1.532636, 28_320_768: 1.532352}, 4)
    assert curve.time_ms(411_058_176) == pytest.approx(1.5324 * 411_058_176 / 28_320_768, rel=0.15)


def test_single_measured_point_gives_bandwidth_with_known_latency() -> None:
    """92.9 MB took 516 ms on 4 GPUs.

    Five buckets with the same total take equally long, and half of the bytes take half as long.
    """
    sizes = (18_576_000,) * 5
    model = Gradients(sizes=sizes, compute=Compute(forward_ms=100, backward_ms=200, update_ms=0, step_ms=300))
    nccl, rounded = (
        Candidate(strategy="nccl", bucket_mb=17.0),
        Candidate(strategy="nccl", compress="bf16", bucket_mb=17.0),
    )
    predictions = _by_name(predict(machine("patrick-4x"), model, [nccl, rounded], 4))
    assert predictions[nccl.label].exchange_ms == pytest.approx(516, rel=0.02)
    assert predictions[rounded.label].exchange_ms == pytest.approx(258, rel=0.02)


def test_time_of_a_small_size_is_the_latency() -> None:
    curve = Curve({1024: 0.2, 1 << 20: 0.4}, 4, empty_ms=0.05)
    assert curve.time_ms(8) == 0.2
    assert Curve({1 << 20: 0.4}, 4, empty_ms=0.05).time_ms(1 << 19) == pytest.approx(0.225)


def test_nvlink_ring_suffices_for_peer_access() -> None:
    """On a DGX-1 every GPU has direct links to only four of seven GPUs, and NCCL uses rings of neighbours."""
    for devices in (4, 8):
        predictions = _by_name(predict(machine("dgx-1"), LARGE, EVERY, devices))
        assert "ring of NVLink" in predictions["nccl"].reason
        assert "no peer access" not in "".join(prediction.reason for prediction in predictions.values())
        assert predictions["nccl"].exposed_ms < predictions["cpu-reduce"].exposed_ms


def test_staged_parameter_server_moves_as_much_as_an_all_reduce() -> None:
    """A link to the host carries one direction at a time, so two transfers over it take as long as an all-reduce."""
    model = Gradients(sizes=(50_000_000,) * 8)
    nccl, spread = (
        predict(machine("7gforce"), model, [Candidate(strategy=name)], 2, p2p=False)[0] for name in ("nccl", "ps-gpu")
    )
    assert spread.exchange_ms == pytest.approx(nccl.exchange_ms, rel=0.1)
