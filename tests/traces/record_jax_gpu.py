"""Record the profiles in `jax_h200/` with JAX 0.11 on GPUs, and measure the same steps without the profiler.

    python tests/traces/record_jax_gpu.py OUT_DIRECTORY
    python tests/traces/minify_xspace.py OUT_DIRECTORY/NAME.xplane.pb.gz tests/traces/jax_h200/NAME.xplane.pb.gz
        --steps 5

A network of six square matrices trains with the batch sharded over the devices. Each step copies its batch from NumPy
with `jax.device_put`, and reads the loss. OUT_DIRECTORY/truth.json has the median step time of each profile's job.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

LAYERS, STEPS, WARM_UP = 6, 10, 3


class Job(NamedTuple):
    """One profile's job: the batch has `rows` rows for all devices together."""

    devices: int
    width: int
    rows: int


JOBS = {
    "clean_1": Job(devices=1, width=4096, rows=2048),
    # The same work per device, without and with communication.
    "exchange_1": Job(devices=1, width=8192, rows=256),
    "exchange_2": Job(devices=2, width=8192, rows=512),
}


def record(name: str, job: Job, directory: Path) -> float:
    """Save the profile of a job as `NAME.xplane.pb.gz`, and return its median step time without the profiler in ms."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[: job.devices]), ("data",))
    everywhere, by_rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    normal = jax.random.normal(jax.random.PRNGKey(0), (job.width, job.width)) * 0.01
    weights = [jax.device_put(normal, everywhere) for _ in range(LAYERS)]
    batch = np.random.default_rng(0).normal(size=(job.rows, job.width)).astype(np.float32)

    def loss(weights: list[Any], x: Any) -> Any:
        for weight in weights:
            x = jax.nn.gelu(x @ weight)
        return jnp.mean(x * x)

    def train_step(weights: list[Any], x: Any) -> tuple[list[Any], Any]:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], value

    train = jax.jit(train_step)

    def step() -> None:
        nonlocal weights
        weights, value = train(weights, jax.device_put(batch, by_rows))
        float(value)

    times = []
    for _ in range(WARM_UP + STEPS):
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as written:
        with jax.profiler.trace(written, profiler_options=options):
            for number in range(STEPS):
                with jax.profiler.StepTraceAnnotation("train", step_num=20 + number):
                    step()
        (profile,) = Path(written).rglob("*.xplane.pb")
        packed = gzip.compress(profile.read_bytes(), 9, mtime=0)
    (directory / f"{name}.xplane.pb.gz").write_bytes(packed)
    return statistics.median(times[WARM_UP:])


def main() -> None:
    """Record all profiles."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    truth = {name: record(name, job, directory) for name, job in JOBS.items()}
    (directory / "truth.json").write_text(json.dumps({"median_step_ms": truth}, indent=2) + "\n")


if __name__ == "__main__":
    main()
