"""The workloads by name, with their defaults. Read by programs that never import a framework."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any, cast

import msgspec

from gpudiag.errors import UsageError, there_are

if TYPE_CHECKING:
    from gpudiag.training.models.pytorch.workload import Workload  # which imports PyTorch

DEFAULT_WORKLOAD = "resnet20-cifar"


class WorkloadEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One workload, as the command line needs to know it.

    Attributes:
        name: as on the command line.
        model: the class and the module of `pytorch/` that holds it, and of `tensorflow/`. Of what only predicts, the
            module's whole name.
        depth: how many layers, of a model that comes in several depths.
        parameters: of the model, all of them trained.
        batches: samples per GPU and per CPU process and step, unless told; on a CPU few enough for about a second.
        summary: one line for help and documentation.
        images: its input is images or volumes, for which a memory format can be chosen.
        trains: it trains; otherwise its module has `predict(job)`, which runs in each process instead.
    """

    name: str
    model: str
    depth: int | None = None
    parameters: int
    batches: tuple[int, int]
    summary: str
    images: bool = True
    trains: bool = True

    @property
    def gpu_batch(self) -> int:
        """Samples per GPU and step."""
        return self.batches[0]

    @property
    def cpu_batch(self) -> int:
        """Samples per CPU process and step."""
        return self.batches[1]

    @property
    def module(self) -> str:
        """The module that holds it under PyTorch."""
        name = self.model.rpartition(".")[0]
        return f"gpudiag.training.models.pytorch.{name}" if self.trains else name

    def make(self, module: str, *, on_gpu: bool) -> Any:
        """An object of the class in this module, which is imported, and the framework with it."""
        made = getattr(importlib.import_module(module), self.model.rpartition(".")[2])
        return made(on_gpu=on_gpu) if self.depth is None else made(self.depth, on_gpu=on_gpu)


_ENTRIES = (
    WorkloadEntry(
        name="resnet20-cifar",
        model="resnet_cifar.ResNetCifarTraining",
        depth=20,
        parameters=269_722,
        batches=(128, 16),
        summary="ResNet-20 on 32x32 images, 0.27 million parameters: many small kernels.",
    ),
    WorkloadEntry(
        name="mlp",
        model="mlp.Mlp",
        parameters=41_157_101,
        batches=(256, 32),
        summary="Five fully connected layers, 41.2 million parameters: little compute per byte exchanged.",
        images=False,
    ),
    WorkloadEntry(
        name="resnet50",
        model="resnet50.ResNet50",
        parameters=25_557_032,
        batches=(64, 2),
        summary="ResNet-50 v1.5 on 224x224 images, 25.6 million parameters: the customary yardstick.",
    ),
    WorkloadEntry(
        name="vgg16",
        model="vgg16.Vgg16",
        parameters=138_357_544,
        batches=(64, 2),
        summary="VGG-16 on 224x224 images (64x64 on a CPU), 138 million parameters: much to exchange per step.",
    ),
    WorkloadEntry(
        name="gpt",
        model="gpt.Gpt2Small",
        parameters=124_475_904,
        batches=(8, 1),
        summary="GPT-2 small on 1024 tokens (128 on a CPU), 124 million parameters.",
        images=False,
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
        model="alexnet.AlexNet",
        parameters=61_100_840,
        batches=(128, 8),
        summary="AlexNet on 224x224 images, 61.1 million parameters: the least compute per byte of the classics.",
    ),
    WorkloadEntry(
        name="inception3",
        model="inception3.Inception3",
        parameters=23_834_568,
        batches=(64, 1),
        summary="Inception-v3 on 299x299 images, 23.8 million parameters: kernels of all shapes.",
    ),
    WorkloadEntry(
        name="resnet32-cifar",
        model="resnet_cifar.ResNetCifarTraining",
        depth=32,
        parameters=464_154,
        batches=(128, 16),
        summary="ResNet-32 on 32x32 images, 0.46 million parameters: the same, deeper.",
    ),
    WorkloadEntry(
        name="resnet44-cifar",
        model="resnet_cifar.ResNetCifarTraining",
        depth=44,
        parameters=658_586,
        batches=(128, 8),
        summary="ResNet-44 on 32x32 images, 0.66 million parameters: the same, deeper.",
    ),
    WorkloadEntry(
        name="resnet56-cifar",
        model="resnet_cifar.ResNetCifarTraining",
        depth=56,
        parameters=853_018,
        batches=(128, 8),
        summary="ResNet-56 on 32x32 images, 0.85 million parameters: the same, deeper.",
    ),
    WorkloadEntry(
        name="resnet110-cifar",
        model="resnet_cifar.ResNetCifarTraining",
        depth=110,
        parameters=1_727_962,
        batches=(128, 4),
        summary="ResNet-110 on 32x32 images, 1.73 million parameters: the same, deeper.",
    ),
    WorkloadEntry(
        name="densenet40-cifar",
        model="densenet_cifar.DenseNetCifarTraining",
        depth=40,
        parameters=1_019_722,
        batches=(64, 4),
        summary="DenseNet-40 of growth 12 on 32x32 images, 1.02 million parameters: memory-bound.",
    ),
    WorkloadEntry(
        name="densenet100-cifar",
        model="densenet_cifar.DenseNetCifarTraining",
        depth=100,
        parameters=6_979_642,
        batches=(64, 1),
        summary="DenseNet-100 of growth 12 on 32x32 images, 6.98 million parameters: memory-bound.",
    ),
    WorkloadEntry(
        name="cnn-cifar",
        model="cnn_cifar.CnnCifar",
        parameters=1_250_858,
        batches=(128, 64),
        summary="Four convolutions on 32x32 images, 1.25 million parameters: hardly anything to compute.",
    ),
    WorkloadEntry(
        name="alexnet-cifar",
        model="alexnet_cifar.AlexNetCifar",
        parameters=1_756_426,
        batches=(128, 32),
        summary="AlexNet for 32x32 images, 1.76 million parameters: few kernels, most of its weights in one layer.",
    ),
    WorkloadEntry(
        name="trivial",
        model="trivial.TrivialImages",
        parameters=150_529,
        batches=(64, 16),
        summary="One weight per value of a 224x224 image: what the input alone takes.",
    ),
)

WORKLOADS = {entry.name: entry for entry in _ENTRIES}

_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_own(name: str) -> bool:
    """Is this `module:function`, the user's own?"""
    return _OWN.fullmatch(name) is not None


def workload_entry(name: str) -> WorkloadEntry:
    """The entry of this name.

    Raises:
        UsageError: there is none; the hint lists those that there are.
    """
    if name not in WORKLOADS:
        raise UsageError(
            f"there is no workload '{name}'", f"{there_are(name, WORKLOADS)[:-1]}; or module:function of your own."
        )
    return WORKLOADS[name]


def training_entry(name: str, what: str) -> WorkloadEntry:
    """The entry of a workload that trains, for `what`, which is about exchanging gradients.

    Raises:
        UsageError: there is none, or it only predicts.
    """
    entry = workload_entry(name)
    if not entry.trains:
        training = ", ".join(known.name for known in _ENTRIES if known.trains)
        raise UsageError(f"{name} does not train, so it has no gradients to exchange", f"{what} knows {training}.")
    return entry


def load_workload(name: str, *, on_gpu: bool) -> Workload:
    """Make the workload, sized for a GPU or for a CPU process. Imports the framework."""
    entry = workload_entry(name)
    return cast("Workload", entry.make(entry.module, on_gpu=on_gpu))
