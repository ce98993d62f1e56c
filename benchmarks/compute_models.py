"""Train models whose computation can be made faster, for `gpudiag profile --try`.

    cd benchmarks; gpudiag profile compute_models:gpt2 --devices 1 --try tf32,fused,sdpa,compile

Without changes, the functions train with slow settings. Matrix products are in full fp32 (with PyTorch's defaults,
convolutions and cuDNN's LSTM compute in tf32), images are in contiguous format, attention writes its scores to memory,
and the optimizer is not fused. Each function has one argument for each change that it implements. ResNet-50, ViT, Llama
and ConvNeXt compute in bf16 under autocast. All models have random weights and train on one batch, which stays on the
device. `judge_changes.py` compares predicted with measured savings of such changes.

`TINY=1` in the environment makes models and batches small enough for a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat
from typing import Any, TypeVar

import torch
from compute_layers import ConvNeXt, Mixer, Translator, WaveNet
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gpudiag

TINY = os.environ.get("TINY", "") not in {"", "0"}
T = TypeVar("T")


@dataclass
class Training:
    """One model with its batch and optimizer on the device.

    Attributes:
        bf16: compute in bf16 under autocast.
        loss: returns the loss of (model, inputs, targets).
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    optimizer: torch.optim.Optimizer
    loss: Callable[[Any, Tensor, Tensor], Tensor]
    bf16: bool

    def step(self) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        with torch.autocast(self.inputs.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.loss(self.model, self.inputs, self.targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self.optimizer.step()


def size(full: T, tiny: T) -> T:
    """Return `full`, or `tiny` if `TINY=1` is set."""
    return tiny if TINY else full


def prepare(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    optimizer: Callable[..., torch.optim.Optimizer],
    *,
    loss: Callable[[Any, Tensor, Tensor], Tensor] | None = None,
    bf16: bool = False,
    tf32: bool = False,
    channels_last: bool = False,
    compiled: bool = False,
) -> Training:
    """Move the model and its batch to the device, and apply the chosen changes. The default loss is cross entropy.

    The precision of matrix products need not be restored, because `gpudiag profile --try` does so before another job.
    """
    torch.backends.cuda.matmul.allow_tf32 = tf32
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    model, inputs, targets = model.to(device).train(), inputs.to(device), targets.to(device)
    if channels_last:
        # The type stubs of `Module.to` lack the form with a memory format only.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = inputs.to(memory_format=torch.channels_last)
    update = optimizer(model.parameters())
    if compiled:
        model.compile()
    return Training(model, inputs, targets, update, loss or _class_loss, bf16)


def train(training: Training) -> None:
    """Train under `gpudiag.profile` until the measurement is done."""
    with gpudiag.profile(model=training.model, batch_size=len(training.inputs)) as prof:
        for _ in prof.steps(repeat(None, 1_000_000)):
            training.step()


def _class_loss(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(inputs), targets)


def _library_loss(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss that models of the transformers library compute themselves."""
    loss: Tensor = model(inputs, labels=targets).loss
    return loss


def _images(batch: int, edge: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return random images with one class each."""
    return torch.randn(batch, 3, edge, edge), torch.randint(0, classes, (batch,))


def _adamw(*, fused: bool, foreach: bool = True) -> Callable[..., torch.optim.Optimizer]:
    return partial(torch.optim.AdamW, lr=1e-4, fused=fused, foreach=foreach and not fused)


def prepare_resnet50(
    *, batch: int = 0, channels_last: bool = False, fused: bool = False, compiled: bool = False
) -> Training:
    """Prepare torchvision's ResNet-50 in bf16, with SGD. With `batch` 0, the batch has 96 images."""
    from torchvision import models  # noqa: PLC0415  # not every machine has torchvision

    inputs, targets = _images(batch or size(96, 2), size(224, 64), 1000)
    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=fused, foreach=not fused)
    return prepare(
        models.resnet50(), inputs, targets, optimizer, bf16=True, channels_last=channels_last, compiled=compiled
    )


def prepare_gpt2(
    *, batch: int = 0, tf32: bool = False, fused: bool = False, sdpa: bool = False, compiled: bool = False
) -> Training:
    """Prepare transformers' GPT-2 of 12 layers on `batch` (0: 8) sequences of 512 tokens, in fp32."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415  # not every machine has transformers

    tokens = size(512, 32)
    small = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500} if TINY else {}
    attention = "sdpa" if sdpa else "eager"
    # No cache of keys and values, because each step would write and keep its tensors.
    config = GPT2Config(
        n_positions=tokens, attn_implementation=attention, use_cache=False, bos_token_id=0, eos_token_id=0, **small
    )
    inputs = torch.randint(0, config.vocab_size, (batch or size(8, 2), tokens))
    optimizer = _adamw(fused=fused)
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # without this value, a warning of the library would split the compiled graph
    return prepare(model, inputs, inputs, optimizer, loss=_library_loss, tf32=tf32, compiled=compiled)


# `gpudiag profile --try` passes its change as the keyword `compile`
def resnet50(*, channels_last: bool = False, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train ResNet-50 in bf16 on 96 images of 224 x 224."""
    train(prepare_resnet50(channels_last=channels_last, fused=fused, compiled=compile))


def vit(
    *,
    channels_last: bool = False,
    fused: bool = False,
    sdpa: bool = False,
    compile: bool = False,  # noqa: A002
) -> None:
    """Train transformers' ViT-S/16 in bf16 on 128 images of 224 x 224."""
    from transformers import ViTConfig, ViTForImageClassification  # noqa: PLC0415  # see `prepare_gpt2`

    config = ViTConfig(
        hidden_size=size(384, 32),
        num_hidden_layers=size(12, 2),
        num_attention_heads=size(6, 2),
        intermediate_size=size(1536, 64),
        image_size=size(224, 64),
        num_labels=1000,
        attn_implementation="sdpa" if sdpa else "eager",
    )
    inputs, targets = _images(size(128, 2), config.image_size, config.num_labels)
    optimizer = _adamw(fused=fused)
    model = ViTForImageClassification(config)
    changed = partial(prepare, channels_last=channels_last, compiled=compile)
    train(changed(model, inputs, targets, optimizer, loss=_library_loss, bf16=True))


def gpt2(*, tf32: bool = False, fused: bool = False, sdpa: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train GPT-2 of 12 layers in fp32 on 8 sequences of 512 tokens."""
    train(prepare_gpt2(tf32=tf32, fused=fused, sdpa=sdpa, compiled=compile))


def efficientnet(
    *,
    tf32: bool = False,
    channels_last: bool = False,
    fused: bool = False,
    compile: bool = False,  # noqa: A002
) -> None:
    """Train torchvision's EfficientNet-B0 in fp32 on 64 images of 224 x 224.

    The optimizer is neither fused nor `foreach`, so that it launches a kernel per parameter and operation.
    """
    from torchvision import models  # noqa: PLC0415  # see `prepare_resnet50`

    inputs, targets = _images(size(64, 2), size(224, 64), 1000)
    optimizer = _adamw(fused=fused, foreach=False)
    model = models.efficientnet_b0()
    train(prepare(model, inputs, targets, optimizer, tf32=tf32, channels_last=channels_last, compiled=compile))


class _ConvolutionPair(nn.Sequential):
    """Two convolutions of 3 x 3, each with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """A plain 2D U-Net of four levels. The number of channels doubles from level to level."""

    def __init__(self, base: int, classes: int, levels: int = 4) -> None:
        super().__init__()
        widths = [base << level for level in range(levels)]
        steps = list(pairwise(widths))
        self.first = _ConvolutionPair(3, base)
        self.down = nn.ModuleList(_ConvolutionPair(narrow, wide) for narrow, wide in steps)
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in reversed(steps))
        self.join = nn.ModuleList(_ConvolutionPair(wide, narrow) for narrow, wide in reversed(steps))
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Conv2d(base, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes of each pixel."""
        kept = [self.first(images)]
        for down in self.down:
            kept.append(down(self.pool(kept[-1])))
        hidden = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            hidden = join(torch.cat([kept.pop(), up(hidden)], 1))
        scores: Tensor = self.last(hidden)
        return scores


def unet(
    *,
    tf32: bool = False,
    channels_last: bool = False,
    fused: bool = False,
    compile: bool = False,  # noqa: A002
) -> None:
    """Train a U-Net with 64 to 512 channels in fp32 on 8 images of 256 x 256."""
    batch, edge = size((8, 256), (2, 32))
    inputs, targets = torch.randn(batch, 3, edge, edge), torch.randint(0, 4, (batch, edge, edge))
    optimizer = _adamw(fused=fused)
    model = UNet(size(64, 8), 4)
    train(prepare(model, inputs, targets, optimizer, tf32=tf32, channels_last=channels_last, compiled=compile))


class WordModel(nn.Module):
    """Predict the next word with an LSTM of two layers."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.output = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of the next word at each position, as (batch, words, positions)."""
        scores: Tensor = self.output(self.lstm(self.embedding(words))[0])
        return scores.transpose(1, 2)


def lstm(*, tf32: bool = False, fused: bool = False) -> None:
    """Train an LSTM of width 1024 in fp32 on 64 sequences of 128 words out of 10,000.

    The optimizer is neither fused nor `foreach`. The change `compile` is missing, because `torch.compile` skips models
    with an `nn.LSTM`.
    """
    words, width = size((10_000, 1024), (200, 32))
    inputs = torch.randint(0, words, size((64, 128), (2, 16)))
    optimizer = _adamw(fused=fused, foreach=False)
    train(prepare(WordModel(words, width), inputs, inputs.roll(-1, 1), optimizer, tf32=tf32))


def bert(*, tf32: bool = False, fused: bool = False, sdpa: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train transformers' BERT of 12 layers in fp32 on 16 sequences of 256 tokens."""
    from transformers import BertConfig, BertForMaskedLM  # noqa: PLC0415  # see `prepare_gpt2`

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(attn_implementation="sdpa" if sdpa else "eager", **(small if TINY else {}))
    inputs = torch.randint(0, config.vocab_size, size((16, 256), (2, 32)))
    optimizer = _adamw(fused=fused)
    train(prepare(BertForMaskedLM(config), inputs, inputs, optimizer, loss=_library_loss, tf32=tf32, compiled=compile))


def _of_torchvision(
    name: str,
    batch: int,
    *,
    channels_last: bool,
    fused: bool,
    compiled: bool,
    bf16: bool = False,
) -> None:
    """Train a model of torchvision on images of 224 x 224, with momentum, in fp32 unless `bf16` is true."""
    from torchvision import models  # noqa: PLC0415  # see `prepare_resnet50`

    inputs, targets = _images(size(batch, 2), size(224, 64), 1000)
    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=fused, foreach=not fused)
    model = models.get_model(name, weights=None)
    train(prepare(model, inputs, targets, optimizer, bf16=bf16, channels_last=channels_last, compiled=compiled))


def densenet(*, channels_last: bool = False, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train DenseNet-121 in fp32 on 96 images."""
    _of_torchvision("densenet121", 96, channels_last=channels_last, fused=fused, compiled=compile)


def mobilenet(*, channels_last: bool = False, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train MobileNetV2 in fp32 on 192 images."""
    _of_torchvision("mobilenet_v2", 192, channels_last=channels_last, fused=fused, compiled=compile)


def mnasnet(*, channels_last: bool = False, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train MNASNet in fp32 on 192 images."""
    _of_torchvision("mnasnet1_0", 192, channels_last=channels_last, fused=fused, compiled=compile)


def shufflenet(*, channels_last: bool = False, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train ShuffleNet-V2 in fp32 on 256 images."""
    _of_torchvision("shufflenet_v2_x1_0", 256, channels_last=channels_last, fused=fused, compiled=compile)


def resnext(*, channels_last: bool = False, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train ResNeXt-50 in bf16 on 96 images."""
    _of_torchvision("resnext50_32x4d", 96, channels_last=channels_last, fused=fused, compiled=compile, bf16=True)


def regnet(*, channels_last: bool = False, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train RegNetY-800MF in fp32 on 128 images."""
    _of_torchvision("regnet_y_800mf", 128, channels_last=channels_last, fused=fused, compiled=compile)


def deit(*, fused: bool = False, sdpa: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train transformers' DeiT-B/16 in bf16 on 96 images of 224 x 224."""
    from transformers import DeiTConfig, DeiTForImageClassification  # noqa: PLC0415  # see `prepare_gpt2`

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    attention = "sdpa" if sdpa else "eager"
    config = DeiTConfig(num_labels=1000, attn_implementation=attention, **(small if TINY else {}))
    inputs, targets = _images(size(96, 2), config.image_size, config.num_labels)
    model = DeiTForImageClassification(config)
    train(prepare(model, inputs, targets, _adamw(fused=fused), loss=_library_loss, bf16=True, compiled=compile))


def llama(*, fused: bool = False, sdpa: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train transformers' Llama of 12 layers in bf16 on 8 sequences of 1024 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  # see `prepare_gpt2`

    config = LlamaConfig(
        vocab_size=size(16_000, 500),
        hidden_size=size(1024, 64),
        intermediate_size=size(2816, 128),
        num_hidden_layers=size(12, 2),
        num_attention_heads=size(16, 2),
        attn_implementation="sdpa" if sdpa else "eager",
        use_cache=False,
    )
    inputs = torch.randint(0, config.vocab_size, size((8, 1024), (2, 32)))
    model = LlamaForCausalLM(config)
    model.loss_type = "ForCausalLM"  # see `prepare_gpt2`
    train(prepare(model, inputs, inputs, _adamw(fused=fused), loss=_library_loss, bf16=True, compiled=compile))


def mixer(*, tf32: bool = False, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train an MLP-Mixer of 8 blocks of width 512 in fp32 on 128 images of 224 x 224."""
    edge = size(224, 32)
    inputs, targets = _images(size(128, 2), edge, 1000)
    model = Mixer((edge // 16) ** 2, size(512, 32), size(8, 2), 1000)
    train(prepare(model, inputs, targets, _adamw(fused=fused), tf32=tf32, compiled=compile))


def convnext(*, channels_last: bool = False, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train a ConvNeXt-T in bf16 on 64 images of 224 x 224."""
    inputs, targets = _images(size(64, 2), size(224, 64), 1000)
    model = ConvNeXt(size(96, 8), size((3, 3, 9, 3), (1, 1, 1, 1)), 1000)
    changed = partial(prepare, channels_last=channels_last, compiled=compile)
    train(changed(model, inputs, targets, _adamw(fused=fused), bf16=True))


def wavenet(*, fused: bool = False, compile: bool = False) -> None:  # noqa: A002
    """Train a WaveNet of 20 layers in fp32 on 8 sounds of 8192 samples.

    The optimizer is neither fused nor `foreach`, so that it launches a kernel per parameter and operation.
    """
    levels, width = size((256, 128), (16, 8))
    inputs = torch.randint(0, levels, size((8, 8192), (2, 64)))
    optimizer = _adamw(fused=fused, foreach=False)
    train(prepare(WaveNet(levels, width, size(20, 3)), inputs, inputs.roll(-1, 1), optimizer, compiled=compile))


def translator(
    *,
    tf32: bool = False,
    fused: bool = False,
    sdpa: bool = False,
    compile: bool = False,  # noqa: A002
) -> None:
    """Train an encoder and decoder of 6 layers each in fp32 on 32 sentences of 128 words."""
    words, width = size((10_000, 512), (200, 32))
    inputs = torch.randint(0, words, size((32, 128), (2, 16)))
    model = Translator(words, width, size(8, 2), size(6, 1), sdpa=sdpa)
    train(prepare(model, inputs, inputs, _adamw(fused=fused), tf32=tf32, compiled=compile))
