"""The workloads by name, with their defaults. Read by programs that never import a framework."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gpudiag.errors import UsageError

if TYPE_CHECKING:
    from gpudiag.workloads.workload import Workload

DEFAULT_WORKLOAD = "resnet20-cifar"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadEntry:
    """One workload, as the command line needs to know it.

    Attributes:
        name: as on the command line.
        summary: one line for help and documentation.
        module: the module that holds it.
        parameters: of the model, all of them trained.
        gpu_batch: samples per GPU and step, unless told.
        cpu_batch: samples per CPU process and step, unless told: small enough for a step of about a second.
        images: its input is images or volumes, for which a memory format can be chosen.
        made_by: the name of the class in the module.
        trains: it trains; otherwise its module has `predict(job)`, which runs in each process instead.
    """

    name: str
    summary: str
    module: str
    parameters: int
    gpu_batch: int
    cpu_batch: int
    images: bool = False
    made_by: str = "WORKLOAD"
    trains: bool = True


_ENTRIES = (
    WorkloadEntry(
        name="resnet20-cifar",
        summary="ResNet-20 on 32x32 images, 0.27 million parameters: many small kernels.",
        module="gpudiag.workloads.resnet_cifar",
        parameters=269_722,
        gpu_batch=128,
        cpu_batch=16,
        images=True,
        made_by="ResNet20Cifar",
    ),
    WorkloadEntry(
        name="mlp",
        summary="Five fully connected layers, 41.2 million parameters: little compute per byte exchanged.",
        module="gpudiag.workloads.mlp",
        parameters=41_157_101,
        gpu_batch=256,
        cpu_batch=32,
    ),
    WorkloadEntry(
        name="resnet50",
        summary="ResNet-50 v1.5 on 224x224 images, 25.6 million parameters: the customary yardstick.",
        module="gpudiag.workloads.resnet50",
        parameters=25_557_032,
        gpu_batch=64,
        cpu_batch=2,
        images=True,
    ),
    WorkloadEntry(
        name="vgg16",
        summary="VGG-16 on 224x224 images (64x64 on a CPU), 138 million parameters: much to exchange per step.",
        module="gpudiag.workloads.vgg16",
        parameters=138_357_544,
        gpu_batch=64,
        cpu_batch=2,
        images=True,
    ),
    WorkloadEntry(
        name="gpt",
        summary="GPT-2 small on 1024 tokens (128 on a CPU), 124 million parameters.",
        module="gpudiag.workloads.gpt",
        parameters=124_475_904,
        gpu_batch=8,
        cpu_batch=1,
    ),
    WorkloadEntry(
        name="unet3d",
        summary="3D U-Net on 40x432x432 voxels (4x54x54 on a CPU), 93.7 million parameters: few large kernels.",
        module="gpudiag.workloads.unet3d",
        parameters=93_659_931,
        gpu_batch=1,
        cpu_batch=1,
        images=True,
    ),
    WorkloadEntry(
        name="unet3d-predict",
        summary="The 3D U-Net predicts a volume of 1.9 gigavoxels (0.08 megavoxels on CPUs) in overlapping blocks.",
        module="gpudiag.workloads.unet3d_predict",
        parameters=93_659_931,
        gpu_batch=1,
        cpu_batch=1,
        images=True,
        made_by="UNet3dPrediction",
        trains=False,
    ),
    WorkloadEntry(
        name="alexnet",
        summary="AlexNet on 224x224 images, 61.1 million parameters: the least compute per byte of the classics.",
        module="gpudiag.workloads.alexnet",
        parameters=61_100_840,
        gpu_batch=128,
        cpu_batch=8,
        images=True,
    ),
    WorkloadEntry(
        name="inception3",
        summary="Inception-v3 on 299x299 images, 23.8 million parameters: kernels of all shapes.",
        module="gpudiag.workloads.inception3",
        parameters=23_834_568,
        gpu_batch=64,
        cpu_batch=1,
        images=True,
    ),
    WorkloadEntry(
        name="resnet32-cifar",
        summary="ResNet-32 on 32x32 images, 0.46 million parameters: the same, deeper.",
        module="gpudiag.workloads.resnet_cifar",
        parameters=464_154,
        gpu_batch=128,
        cpu_batch=16,
        images=True,
        made_by="ResNet32Cifar",
    ),
    WorkloadEntry(
        name="resnet44-cifar",
        summary="ResNet-44 on 32x32 images, 0.66 million parameters: the same, deeper.",
        module="gpudiag.workloads.resnet_cifar",
        parameters=658_586,
        gpu_batch=128,
        cpu_batch=8,
        images=True,
        made_by="ResNet44Cifar",
    ),
    WorkloadEntry(
        name="resnet56-cifar",
        summary="ResNet-56 on 32x32 images, 0.85 million parameters: the same, deeper.",
        module="gpudiag.workloads.resnet_cifar",
        parameters=853_018,
        gpu_batch=128,
        cpu_batch=8,
        images=True,
        made_by="ResNet56Cifar",
    ),
    WorkloadEntry(
        name="resnet110-cifar",
        summary="ResNet-110 on 32x32 images, 1.73 million parameters: the same, deeper.",
        module="gpudiag.workloads.resnet_cifar",
        parameters=1_727_962,
        gpu_batch=128,
        cpu_batch=4,
        images=True,
        made_by="ResNet110Cifar",
    ),
    WorkloadEntry(
        name="densenet40-cifar",
        summary="DenseNet-40 of growth 12 on 32x32 images, 1.02 million parameters: memory-bound.",
        module="gpudiag.workloads.densenet_cifar",
        parameters=1_019_722,
        gpu_batch=64,
        cpu_batch=4,
        images=True,
        made_by="DenseNet40Cifar",
    ),
    WorkloadEntry(
        name="densenet100-cifar",
        summary="DenseNet-100 of growth 12 on 32x32 images, 6.98 million parameters: memory-bound.",
        module="gpudiag.workloads.densenet_cifar",
        parameters=6_979_642,
        gpu_batch=64,
        cpu_batch=1,
        images=True,
        made_by="DenseNet100Cifar",
    ),
    WorkloadEntry(
        name="cnn-cifar",
        summary="Four convolutions on 32x32 images, 1.25 million parameters: hardly anything to compute.",
        module="gpudiag.workloads.cnn_cifar",
        parameters=1_250_858,
        gpu_batch=128,
        cpu_batch=64,
        images=True,
        made_by="CnnCifar",
    ),
    WorkloadEntry(
        name="trivial",
        summary="One weight per value of a 224x224 image: what the input alone takes.",
        module="gpudiag.workloads.trivial",
        parameters=150_529,
        gpu_batch=64,
        cpu_batch=16,
        images=True,
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
            f"there is no workload '{name}'", f"There are: {', '.join(WORKLOADS)}; or module:function of your own."
        )
    return WORKLOADS[name]


def training_entry(name: str, what: str) -> WorkloadEntry:
    """The entry of a workload that trains, for `what`, which is about exchanging gradients.

    Raises:
        UsageError: there is none, or it only predicts.
    """
    entry = workload_entry(name)
    if not entry.trains:
        training = ", ".join(one.name for one in _ENTRIES if one.trains)
        raise UsageError(f"{name} does not train, so it has no gradients to exchange", f"{what} knows {training}.")
    return entry


def load_workload(name: str, *, on_gpu: bool) -> Workload:
    """Make the workload, sized for a GPU or for a CPU process. Imports the framework."""
    entry = workload_entry(name)
    module = importlib.import_module(entry.module)
    return cast("Workload", getattr(module, entry.made_by)(on_gpu=on_gpu))
