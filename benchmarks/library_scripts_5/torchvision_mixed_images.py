# mypy: ignore-errors
# ruff: noqa: PLW2901
"""Train a vision transformer of torchvision on images that CutMix and MixUp combine on the device."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.models import vit_b_16
from torchvision.models.vision_transformer import VisionTransformer
from torchvision.transforms import v2


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=1250)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and images, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.image_size, args.classes, args.batch_size, args.workers = 32, 10, 4, 1
    return args


class Images(Dataset):
    """Images of random pixels, kept as bytes."""

    def __init__(self, args):
        self.length, self.classes = args.steps_per_epoch * args.batch_size, args.classes
        self.images = torch.randint(0, 256, (512, 3, args.image_size, args.image_size), dtype=torch.uint8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.images[index % len(self.images)], index % self.classes


def make_model(args):
    if not args.tiny:
        return vit_b_16(weights=None, num_classes=args.classes)
    return VisionTransformer(args.image_size, 16, 2, 2, 64, 128, num_classes=args.classes)


def decayed(model):
    """Return two groups of parameters: those with weight decay, and vectors and positions without it."""
    plain = [value for name, value in model.named_parameters() if value.ndim < 2 or "pos_embedding" in name]
    others = [value for name, value in model.named_parameters() if value.ndim >= 2 and "pos_embedding" not in name]
    return [{"params": others, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(16)
    torch.set_float32_matmul_precision("high")
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Images(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True, prefetch_factor=4,
    )  # fmt: skip
    mix = v2.RandomChoice([v2.CutMix(num_classes=args.classes), v2.MixUp(num_classes=args.classes, alpha=0.8)])
    model: nn.Module = make_model(args).to(device)
    optimizer = torch.optim.AdamW(decayed(model), lr=args.lr, betas=(0.9, 0.95), fused=on_gpu)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * args.steps_per_epoch)

    for epoch in range(args.epochs):
        model.train()
        start, total = time.time(), torch.zeros((), device=device)
        for step, (images, labels) in enumerate(loader, 1):
            images = images.to(device, non_blocking=True).to(torch.bfloat16).sub(127.5).div(58.0)
            images, shares = mix(images, labels.to(device, non_blocking=True))
            with torch.autocast(device.type, torch.bfloat16):
                logits = model(images)
            loss = functional.cross_entropy(logits.float(), shares, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.detach()
            if step % 100 == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {total.item() / step:.3f} {rate:.0f} img/s", flush=True)
        torch.save(model.state_dict(), args.output / "vit.pt")


if __name__ == "__main__":
    main()
