# mypy: ignore-errors
# ruff: noqa: PLW2901
"""Find several diseases on X-ray images with a ResNet-101 of torchvision, in bf16."""

import argparse
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet101
from torchvision.models.resnet import BasicBlock, ResNet


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--diseases", type=int, default=14)
    parser.add_argument("--batch-size", type=int, default=112)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--steps-per-epoch", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and images, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="keep the channels of the images last in memory")
    args = parser.parse_args()
    if args.tiny:
        args.image_size, args.batch_size, args.workers = 32, 2, 1
    return args


class Radiographs(Dataset):
    """Grey images of random pixels, each with a label for every disease."""

    def __init__(self, args):
        self.length = args.steps_per_epoch * args.batch_size
        self.images = torch.randint(0, 256, (1024, 1, args.image_size, args.image_size), dtype=torch.uint8)
        self.labels = (torch.rand(1024, args.diseases) < 0.1).float()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        number = index % len(self.images)
        return self.images[number], self.labels[number]


def make_model(args):
    if not args.tiny:
        return resnet101(weights=None, num_classes=args.diseases)
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=args.diseases)


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(6)
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Radiographs(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    model = make_model(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2, fused=on_gpu)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * args.steps_per_epoch)
    weight = torch.full((args.diseases,), 9.0, device=device)

    for epoch in range(args.epochs):
        model.train()
        start, total = time.time(), torch.zeros((), device=device)
        for step, (images, labels) in enumerate(loader, 1):
            images = images.to(device, non_blocking=True).to(torch.bfloat16).sub(127.5).div(64.0).repeat(1, 3, 1, 1)
            labels = labels.to(device, non_blocking=True)
            if args.fixed:
                images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16):
                logits = model(images)
            loss = functional.binary_cross_entropy_with_logits(logits.float(), labels, pos_weight=weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.detach()
            if step % 100 == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {total.item() / step:.3f} {rate:.0f} img/s", flush=True)
        torch.save(model.state_dict(), args.output / "xrays.pt")


if __name__ == "__main__":
    main()
