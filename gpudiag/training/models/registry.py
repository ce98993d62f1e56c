"""List the workloads by name, with their defaults. Importing this module imports no framework."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any, cast

import msgspec

from gpudiag.errors import UsageError, there_are

if TYPE_CHECKING:
    from gpudiag.training.models.pytorch.workload import Workload
    from gpudiag.training.models.tensorflow.workload import KerasWorkload

DEFAULT_WORKLOAD = "resnet20-cifar"

_MODELS = "gpudiag.training.models"


class WorkloadEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a workload for the command line.

    Attributes:
        model: `module.class` of the workload in the folder `pytorch`. In the folder `tensorflow` the class has the
            prefix `Keras`. If the workload only predicts, `model` is the full name with all packages.
        depth: number of layers if the model exists in several depths; otherwise 0.
        batches: default number of samples per step on a GPU and in a CPU process. On a CPU a step takes about 1 s.
        images: True if the input is images or volumes, for which a memory format can be chosen.
        attention: True if the model has fused attention layers.
        trains: False if the workload only predicts; then its module has `predict(job)`.
    """

    name: str
    model: str
    depth: int = 0
    parameters: int
    batches: tuple[int, int]
    summary: str
    images: bool = True
    attention: bool = False
    trains: bool = True

    def default_batch(self, *, on_gpu: bool) -> int:
        """Return the default number of samples per step, for a GPU or for a CPU process."""
        return self.batches[0 if on_gpu else 1]

    @property
    def module(self) -> str:
        """Full name of the module of the PyTorch workload."""
        name = self.model.rpartition(".")[0]
        return f"{_MODELS}.pytorch.{name}" if self.trains else name

    def make(self, *, on_gpu: bool) -> Any:
        """Import PyTorch and make the PyTorch workload."""
        return self._make(self.module, self.model.rpartition(".")[2], on_gpu=on_gpu)

    def make_keras(self, *, on_gpu: bool) -> Any:
        """Import TensorFlow and make the Keras workload."""
        module, _, name = self.model.rpartition(".")
        return self._make(f"{_MODELS}.tensorflow.{module}", f"Keras{name}", on_gpu=on_gpu)

    def _make(self, module: str, name: str, *, on_gpu: bool) -> Any:
        return getattr(importlib.import_module(module), name)(on_gpu=on_gpu, depth=self.depth)


_ENTRIES = (
    WorkloadEntry(
        name="resnet20-cifar",
        model="cifar.ResNetCifarTraining",
        depth=20,
        parameters=269_722,
        batches=(128, 16),
        summary="ResNet-20 on 32x32 images, 0.27 million parameters: many small kernels.",
    ),
    WorkloadEntry(
        name="mlp",
        model="perceptrons.Mlp",
        parameters=41_157_101,
        batches=(256, 32),
        summary="Five fully connected layers, 41.2 million parameters: little compute per byte of gradients.",
        images=False,
    ),
    WorkloadEntry(
        name="resnet50",
        model="imagenet.ResNet50",
        parameters=25_557_032,
        batches=(64, 2),
        summary="ResNet-50 v1.5 on 224x224 images, 25.6 million parameters: the customary benchmark.",
    ),
    WorkloadEntry(
        name="vgg16",
        model="imagenet.Vgg16",
        parameters=138_357_544,
        batches=(64, 2),
        summary="VGG-16 on 224x224 images (64x64 on a CPU), 138 million parameters: many gradients per step.",
    ),
    WorkloadEntry(
        name="gpt",
        model="gpt.Gpt2Small",
        parameters=124_475_904,
        batches=(8, 1),
        summary="GPT-2 small on 1024 tokens (128 on a CPU), 124 million parameters.",
        images=False,
        attention=True,
    ),
    WorkloadEntry(
        name="unet3d",
        model="unet3d.UNet3dTraining",
        parameters=93_659_931,
        batches=(1, 1),
        summary="3D U-Net on 40x432x432 voxels (4x54x54 on a CPU), 93.7 million parameters: few large kernels.",
    ),
    WorkloadEntry(
        name="unet3d-predict",
        model="gpudiag.training.jobs.volume.unet3d_predict.UNet3dPrediction",
        parameters=93_659_931,
        batches=(1, 1),
        summary="The 3D U-Net predicts a volume of 1.9 gigavoxels (0.08 megavoxels on CPUs) in overlapping blocks.",
        trains=False,
    ),
    WorkloadEntry(
        name="alexnet",
        model="imagenet.AlexNet",
        parameters=61_100_840,
        batches=(128, 8),
        summary="AlexNet on 224x224 images, 61.1 million parameters: the least compute per byte of the classics.",
    ),
    WorkloadEntry(
        name="inception3",
        model="imagenet.Inception3",
        parameters=23_834_568,
        batches=(64, 1),
        summary="Inception-v3 on 299x299 images, 23.8 million parameters: kernels of all shapes.",
    ),
    *(
        WorkloadEntry(
            name=f"resnet{depth}-cifar",
            model="cifar.ResNetCifarTraining",
            depth=depth,
            parameters=parameters,
            batches=(128, cpu_batch),
            summary=f"ResNet-{depth} on 32x32 images, {parameters / 1e6:.2f} million parameters: a deeper ResNet-20.",
        )
        for depth, parameters, cpu_batch in ((32, 464_154, 16), (44, 658_586, 8), (56, 853_018, 8), (110, 1_727_962, 4))
    ),
    *(
        WorkloadEntry(
            name=f"densenet{depth}-cifar",
            model="cifar.DenseNetCifarTraining",
            depth=depth,
            parameters=parameters,
            batches=(64, cpu_batch),
            summary=f"DenseNet-{depth} of growth 12 on 32x32 images, {parameters / 1e6:.2f} million parameters: "
            "memory-bound.",
        )
        for depth, parameters, cpu_batch in ((40, 1_019_722, 4), (100, 6_979_642, 1))
    ),
    WorkloadEntry(
        name="cnn-cifar",
        model="cifar.CnnCifar",
        parameters=1_250_858,
        batches=(128, 64),
        summary="Four convolutions on 32x32 images, 1.25 million parameters: hardly any compute.",
    ),
    WorkloadEntry(
        name="alexnet-cifar",
        model="cifar.AlexNetCifar",
        parameters=1_756_426,
        batches=(128, 32),
        summary="AlexNet for 32x32 images, 1.76 million parameters: few kernels, most of its weights in one layer.",
    ),
    WorkloadEntry(
        name="trivial",
        model="perceptrons.TrivialImages",
        parameters=150_529,
        batches=(64, 16),
        summary="One weight per value of a 224x224 image: the cost of input alone.",
    ),
)

WORKLOADS = {entry.name: entry for entry in _ENTRIES}

_USER_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_own(name: str) -> bool:
    """Return whether the name has the form `module:function` of a user-defined workload."""
    return _USER_FUNCTION.fullmatch(name) is not None


def workload_entry(name: str) -> WorkloadEntry:
    """Return the workload of this name; raise UsageError, with all names as hint, if there is none."""
    if name not in WORKLOADS:
        # `[:-1]` removes the full stop.
        raise UsageError(
            f"there is no workload '{name}'", f"{there_are(name, WORKLOADS)[:-1]}; or module:function of your own."
        )
    return WORKLOADS[name]


def training_entry(name: str, command: str) -> WorkloadEntry:
    """Return the workload of this name, for a command that needs gradients. The error's hint names `command`.

    Raise UsageError if no workload has this name, or the workload only predicts.
    """
    entry = workload_entry(name)
    if not entry.trains:
        raise UsageError(
            f"{name} does not train, so it has no gradients to communicate", f"{command} knows {_trained()}."
        )
    return entry


def load_workload(name: str, *, on_gpu: bool) -> Workload:
    """Import PyTorch and make the PyTorch workload, sized for a GPU or for a CPU process."""
    return cast("Workload", workload_entry(name).make(on_gpu=on_gpu))


def check_keras_workload(name: str) -> None:
    """Raise UsageError if there is no workload of this name, or if TensorFlow does not support it."""
    if not workload_entry(name).trains:
        raise UsageError(
            f"there is no {name} for TensorFlow", f"There are: {_trained()}; or module:function of your own."
        )


def load_keras_workload(name: str, *, on_gpu: bool) -> KerasWorkload:
    """Import TensorFlow and make the Keras workload, sized for GPUs or for CPU devices."""
    check_keras_workload(name)
    return cast("KerasWorkload", workload_entry(name).make_keras(on_gpu=on_gpu))


def _trained() -> str:
    return ", ".join(entry.name for entry in _ENTRIES if entry.trains)
