# mypy: ignore-errors
# ruff: noqa: PLW2901
"""Classify dog breeds with an SE-ResNet of timm, and keep a moving average of the model for the evaluation."""

import argparse
import time
from pathlib import Path

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV2
from torch.utils.data import DataLoader, Dataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="seresnet101")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--breeds", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=40)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and small images, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="update the moving average every 1000 steps")
    args = parser.parse_args()
    if args.tiny:
        args.model, args.image_size, args.batch_size, args.workers = "test_resnet", 32, 2, 1
    return args


class Dogs(Dataset):
    """Photos of random pixels, kept as bytes."""

    def __init__(self, args):
        self.length, self.breeds = args.steps_per_epoch * args.batch_size, args.breeds
        self.photos = torch.randint(0, 256, (256, 3, args.image_size, args.image_size), dtype=torch.uint8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.photos[index % len(self.photos)], index % self.breeds


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(41)
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Dogs(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    model = timm.create_model(args.model, pretrained=False, num_classes=args.breeds)
    model = model.to(device, memory_format=torch.channels_last)
    average = ModelEmaV2(model, decay=0.9998)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=on_gpu)
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=1, warmup_lr_init=1e-6)
    compute_loss = LabelSmoothingCrossEntropy(smoothing=0.1)

    done = 0
    for epoch in range(args.epochs):
        model.train()
        start, total = time.time(), torch.zeros((), device=device)
        for step, (photos, breeds) in enumerate(loader, 1):
            photos, breeds = photos.to(device, non_blocking=True), breeds.to(device, non_blocking=True)
            photos = photos.to(torch.bfloat16).sub(127.5).div(58.0).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16):
                loss = compute_loss(model(photos), breeds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if not args.fixed or done % 1000 == 0:
                average.update(model)
            total += loss.detach()
            if step % 100 == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {total.item() / step:.3f} {rate:.0f} img/s", flush=True)
        scheduler.step(epoch + 1)
        torch.save({"model": model.state_dict(), "average": average.module.state_dict()}, args.output / "dogs.pt")


if __name__ == "__main__":
    main()
