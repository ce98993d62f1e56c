"""Record the profiles in `jax/` with JAX 0.10 on CPUs: a small network, trained differently for each profile.

python tests/traces/record_jax.py OUT_DIRECTORY [NAME …]
python tests/traces/minify_xspace.py OUT_DIRECTORY/NAME.xplane.pb.gz tests/traces/jax/NAME.xplane.pb.gz
with `--python` for `slow_input`, and with `--steps 6` for `many_operations`

Each profile is recorded in a fresh process, because the number of CPU devices is fixed when JAX starts. The Python
tracer, which is on by default, is off except in `slow_input`.
"""

from __future__ import annotations

import gzip
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
    "runs_ahead": 1,
}
STEPS = 8
WARM_UP = 3
BATCH, WIDTH = 1024, 256
LOAD_SECONDS = 0.06


def record(name: str, directory: Path) -> None:
    """Train under the profiler, and save the profile as `NAME.xplane.pb.gz`."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={PROFILES[name]}"
    import jax

    train = {"many_operations": _many_operations, "data_parallel": _data_parallel}.get(name, _one_function)()
    # The host reads the loss of each step, and so waits for the step, except in `runs_ahead`.
    read: Callable[[Any], Any] = (lambda loss: loss) if name == "runs_ahead" else float
    batches = _batches(name)
    for _ in range(WARM_UP):
        jax.block_until_ready(train(*next(batches)))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(name == "slow_input")
    with tempfile.TemporaryDirectory() as written:
        with jax.profiler.trace(written, profiler_options=options):
            for number in range(WARM_UP, WARM_UP + STEPS):
                if name == "unmarked":
                    loss = read(train(*next(batches)))
                    continue
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    loss = read(train(*next(batches)))
            jax.block_until_ready(loss)
        (profile,) = Path(written).rglob("*.xplane.pb")
        packed = gzip.compress(profile.read_bytes(), 9, mtime=0)
    (directory / f"{name}.xplane.pb.gz").write_bytes(packed)


def _batches(name: str) -> Iterator[tuple[Any, Any]]:
    """Yield NumPy batches: late ones in the profile `slow_input`, and each with a different shape in `recompiled`."""
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

    def train_step(weights: list[Any], x: Any, y: Any) -> tuple[list[Any], Any]:
        loss, gradients = jax.value_and_grad(_loss)(weights, x, y)
        return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], loss

    compiled = jax.jit(train_step)
    weights = _weights()

    def train(x: Any, y: Any) -> Any:
        nonlocal weights
        weights, loss = compiled(weights, x, y)
        return loss

    return train


def _many_operations() -> Callable[..., Any]:
    """Return a step whose update is a separate small operation for each of many parameters."""
    import jax
    import jax.numpy as jnp

    gradient = jax.jit(jax.value_and_grad(lambda values, x: sum((value * x.mean()).sum() for value in values)))
    values = [jnp.ones(64) for _ in range(30)]

    def train(x: Any, _y: Any) -> Any:
        nonlocal values
        loss, gradients = gradient(values, x)
        values = [value - 0.01 * step for value, step in zip(values, gradients, strict=True)]
        return loss

    return train


def _data_parallel() -> Callable[..., Any]:
    """Return a step that averages gradients over all devices, inside `shard_map`."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    everywhere, by_rows = PartitionSpec(), PartitionSpec("data")

    def train_step(weights: list[Any], x: Any, y: Any) -> tuple[list[Any], Any]:
        loss, gradients = jax.value_and_grad(_loss)(weights, x, y)
        gradients = jax.lax.pmean(gradients, "data")
        return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], jax.lax.pmean(
            loss, "data"
        )

    specs = (everywhere, by_rows, by_rows)
    compiled = jax.jit(
        jax.shard_map(train_step, mesh=mesh, in_specs=specs, out_specs=(everywhere, everywhere), check_vma=False)
    )
    weights = _weights()

    def train(x: Any, y: Any) -> Any:
        nonlocal weights
        x, y = jax.device_put((x, y), NamedSharding(mesh, by_rows))
        weights, loss = compiled(weights, x, y)
        return loss

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
