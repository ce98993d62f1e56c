"""Which workloads there are under TensorFlow, and where; names and defaults are `gpudiag.workloads.registry`'s."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from gpudiag.errors import UsageError
from gpudiag.workloads.registry import workload_entry

if TYPE_CHECKING:
    from gpudiag.workloads.tensorflow.workload import KerasWorkload

#: Module and class of each.
_PLACES = {
    "resnet20-cifar": ("resnet_cifar", "ResNet20Cifar"),
    "mlp": ("mlp", "Mlp"),
    "resnet50": ("resnet50", "ResNet50"),
    "vgg16": ("vgg16", "Vgg16"),
    "gpt": ("gpt", "Gpt2Small"),
    "unet3d": ("unet3d", "UNet3d"),
    "alexnet": ("alexnet", "AlexNet"),
    "inception3": ("inception3", "Inception3"),
    "resnet32-cifar": ("resnet_cifar", "ResNet32Cifar"),
    "resnet44-cifar": ("resnet_cifar", "ResNet44Cifar"),
    "resnet56-cifar": ("resnet_cifar", "ResNet56Cifar"),
    "resnet110-cifar": ("resnet_cifar", "ResNet110Cifar"),
    "densenet40-cifar": ("densenet_cifar", "DenseNet40Cifar"),
    "densenet100-cifar": ("densenet_cifar", "DenseNet100Cifar"),
    "cnn-cifar": ("cnn_cifar", "CnnCifar"),
    "trivial": ("trivial", "TrivialImages"),
}

TENSORFLOW_WORKLOADS = tuple(_PLACES)


def check_workload(name: str) -> None:
    """Raise UsageError where there is no such workload, or none under TensorFlow."""
    workload_entry(name)
    if name not in _PLACES:
        raise UsageError(
            f"there is no {name} for TensorFlow", f"There are: {', '.join(_PLACES)}; or module:function of your own."
        )


def load_workload(name: str, *, on_gpu: bool) -> KerasWorkload:
    """Make the workload, sized for GPUs or for CPU devices. Imports TensorFlow."""
    check_workload(name)
    module, made_by = _PLACES[name]
    found = getattr(importlib.import_module(f"gpudiag.workloads.tensorflow.{module}"), made_by)
    return cast("KerasWorkload", found(on_gpu=on_gpu))
