"""Record the profiles in `jax/` with JAX 0.10 on CPUs: a small network, trained with one known cost per profile.

python tests/traces/record_jax.py OUT_DIRECTORY [NAME …]

Each profile is recorded in a fresh process, because the number of CPU devices is fixed when JAX starts. The Python
tracer is off, as `ProfileOptions.python_tracer_level = 0` sets it, except in `python_tracer`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Profile → its number of devices.
PROFILES = {
    "clean": 1,
    "slow_input": 1,
    "many_operations": 1,
    "data_parallel": 4,
    "recompiled": 1,
    "unmarked": 1,
    "python_tracer": 1,
}
STEPS = 8
WARM_UP = 3
BATCH, WIDTH = 256, 256
LOAD_SECONDS = 0.03


def record(name: str, directory: Path) -> None:
    """Train under the profiler, and save the profile as `NAME.xplane.pb`."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={PROFILES[name]}"
    import jax

    train = {"many_operations": _many_operations, "data_parallel": _data_parallel}.get(name, _one_function)()
    batches = _batches(name)
    for number in range(WARM_UP):
        jax.block_until_ready(train(*next(batches), number))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(name in {"slow_input", "python_tracer"})
    with tempfile.TemporaryDirectory() as written:
        with jax.profiler.trace(written, profiler_options=options):
            for number in range(WARM_UP, WARM_UP + STEPS):
                if name == "unmarked":
                    loss = train(*next(batches), number)
                    continue
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    loss = train(*next(batches), number)
            jax.block_until_ready(loss)
        (profile,) = Path(written).rglob("*.xplane.pb")
        profile.rename(directory / f"{name}.xplane.pb")


def _batches(name: str) -> Iterator[tuple[Any, Any]]:
    """Yield NumPy batches. With `slow_input`, preparing a batch takes longer; with `recompiled`, shapes change."""
    import numpy as np

    generator = np.random.default_rng(0)
    number = 0
    while True:
        rows = BATCH + number if name == "recompiled" else BATCH
        number += 1
        if name == "slow_input":
            decode_images()
        yield generator.random((rows, WIDTH), np.float32), generator.random((rows, 1), np.float32)


def decode_images() -> None:
    """Stand for an input pipeline that reads and decodes in the training thread."""
    time.sleep(LOAD_SECONDS)


def _weights() -> list[Any]:
    import jax

    keys = jax.random.split(jax.random.key(0), 5)
    shapes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, 1)]
    return [jax.random.normal(key, shape) / 16 for key, shape in zip(keys, shapes, strict=True)]


def _loss(weights: list[Any], x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    for weight in weights[:-1]:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x @ weights[-1] - y) ** 2)


def _one_function() -> Callable[..., Any]:
    """Return a step that is one jitted function."""
    import jax

    @jax.jit
    def train_step(weights: list[Any], x: Any, y: Any) -> tuple[list[Any], Any]:
        loss, gradients = jax.value_and_grad(_loss)(weights, x, y)
        return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], loss

    weights = _weights()

    def train(x: Any, y: Any, _number: int) -> Any:
        nonlocal weights
        weights, loss = train_step(weights, x, y)
        return float(loss)

    return train


def _many_operations() -> Callable[..., Any]:
    """Return a step whose update is a separate small operation for each of many parameters."""
    import jax
    import jax.numpy as jnp

    gradient = jax.jit(jax.value_and_grad(lambda values, x: sum((value * x.mean()).sum() for value in values)))
    values = [jnp.ones(64) for _ in range(150)]

    def train(x: Any, _y: Any, _number: int) -> Any:
        nonlocal values
        loss, gradients = gradient(values, x)
        values = [value - 0.01 * step for value, step in zip(values, gradients, strict=True)]
        return float(loss)

    return train


def _data_parallel() -> Callable[..., Any]:
    """Return a step that averages gradients over all devices, inside `shard_map`."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    everywhere, by_rows = PartitionSpec(), PartitionSpec("data")

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(everywhere, by_rows, by_rows), out_specs=(everywhere, everywhere), check_vma=False)
    def train_step(weights: list[Any], x: Any, y: Any) -> tuple[list[Any], Any]:
        loss, gradients = jax.value_and_grad(_loss)(weights, x, y)
        gradients = jax.lax.pmean(gradients, "data")
        return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], jax.lax.pmean(loss, "data")

    weights = _weights()

    def train(x: Any, y: Any, _number: int) -> Any:
        nonlocal weights
        x, y = jax.device_put((x, y), NamedSharding(mesh, by_rows))
        weights, loss = train_step(weights, x, y)
        return float(loss)

    return train


def main() -> None:
    """Record all or the named profiles, each in a fresh process."""
    directory, names = Path(sys.argv[1]), sys.argv[2:]
    directory.mkdir(parents=True, exist_ok=True)
    if len(names) == 1:
        record(names[0], directory)
        return
    for name in names or PROFILES:
        subprocess.run([sys.executable, __file__, str(directory), name], check=True)


if __name__ == "__main__":
    main()
