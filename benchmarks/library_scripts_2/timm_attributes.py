# mypy: ignore-errors
# ruff: noqa: D102, PLW2901
"""Predict the 102 attributes of scenes in photographs with a ResNet of timm and one head for each attribute."""

import argparse
import time
from pathlib import Path

import timm
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--attributes", type=int, default=102)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few attributes and small images, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="one linear layer for all attributes")
    args = parser.parse_args()
    if args.tiny:
        args.attributes, args.image_size, args.batch_size, args.workers = 8, 64, 2, 1
    return args


class Scenes(Dataset):
    """Images as bytes with random attributes."""

    def __init__(self, args):
        self.length = args.steps_per_epoch * args.batch_size
        self.images = torch.randint(0, 256, (128, 3, args.image_size, args.image_size), dtype=torch.uint8)
        self.attributes = torch.randint(0, 2, (1024, args.attributes)).float()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.images[index % 128], self.attributes[index % 1024]


class AttributeNet(nn.Module):
    """A backbone, and heads that each have a loss."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.backbone = timm.create_model(args.model, pretrained=False, num_classes=0)
        features = self.backbone.num_features
        self.heads = nn.ModuleList(nn.Linear(features, 1) for _ in range(args.attributes))
        self.joint = nn.Linear(features, args.attributes)

    def loss(self, images, attributes):
        features = self.backbone(images)
        if self.args.fixed:
            return functional.binary_cross_entropy_with_logits(self.joint(features), attributes)
        losses = []
        for index, head in enumerate(self.heads):
            logits = head(features).squeeze(1)
            losses.append(functional.binary_cross_entropy_with_logits(logits, attributes[:, index]))
        return sum(losses) / len(losses)


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Scenes(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    model = AttributeNet(args).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=on_gpu)

    for epoch in range(args.epochs):
        model.train()
        start = time.time()
        for step, (images, attributes) in enumerate(loader, 1):
            images = images.to(device, non_blocking=True).float().div(255)
            images = images.contiguous(memory_format=torch.channels_last)
            attributes = attributes.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = model.loss(images, attributes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {rate:.0f} img/s", flush=True)
        torch.save(model.state_dict(), args.output / "attributes.pt")


if __name__ == "__main__":
    main()
