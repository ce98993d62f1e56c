"""Describe a model's gradient sizes and the FLOPs of a step, without a device.

    python -m gpudiag.training.models.pytorch.gradients NAME

The model is built on the meta device, so most of the time is the import of PyTorch. The output is one JSON object.
`sizes`: bytes of each parameter's gradient (fp32), the last parameter first, as in backward. `blocks`: number of units
that FSDP gathers. `flops`: FLOPs of forward and backward for one sample, or null. `batch_size`: default number of
samples per device. `input_bytes`: bytes of one sample.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from gpudiag.training.models.registry import load_workload, workload_entry
from gpudiag.training.strategies.pytorch.fsdp import shards_of


def main() -> None:
    """Print the description of one workload."""
    parser = argparse.ArgumentParser(description="Gradient sizes of a built-in workload, as JSON.")
    parser.add_argument("workload")
    parser.add_argument("--cpu", action="store_true", help="sized for a CPU process, not for a GPU")
    options = parser.parse_args()
    json.dump(describe(options.workload, on_gpu=not options.cpu), sys.stdout)


def describe(name: str, *, on_gpu: bool) -> dict[str, Any]:
    """Return the JSON object of the module's docstring for a workload; raise UsageError if the name is unknown."""
    entry = workload_entry(name)
    workload = load_workload(name, on_gpu=on_gpu)
    with torch.device("meta"):
        model = workload.model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    inputs, target = workload.samples(1, torch.Generator().manual_seed(0))
    flops: int | None = None
    try:
        with FlopCounterMode(display=False) as counter:
            loss = workload.loss(model(workload.prepare(inputs.to("meta"))), target.to("meta"))
            loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        flops = int(counter.get_total_flops())
    except Exception as error:  # noqa: BLE001  # a model that needs tensor values cannot run on the meta device
        print(f"the FLOPs of a step are unknown: {error}", file=sys.stderr)  # noqa: T201
    return {
        "sizes": [parameter.numel() * parameter.element_size() for parameter in reversed(trained)],
        "flops": flops,
        "blocks": len(shards_of(model)),
        "batch_size": entry.default_batch(on_gpu=on_gpu),
        "input_bytes": inputs.numel() * inputs.element_size(),
    }


if __name__ == "__main__":
    main()
