# mypy: ignore-errors
# ruff: noqa: D102, PLW2901
"""Train an image encoder of torchvision to find a photo's item among many items with fixed embeddings."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18, resnet50


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and few items, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="keep the item embeddings on the device")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.image_size, args.items, args.workers = 2, 32, 500, 1
    return args


class Photos(Dataset):
    """Photos as bytes, each with the number of its item."""

    def __init__(self, args):
        self.length = args.steps_per_epoch * args.batch_size
        self.images = torch.randint(0, 256, (128, 3, args.image_size, args.image_size), dtype=torch.uint8)
        self.items = torch.randint(0, args.items, (4096,))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.images[index % 128], self.items[index % 4096]


class Retriever(nn.Module):
    """An encoder, and the cosine similarities of a photo's embedding to the embeddings of all items."""

    def __init__(self, args, items):
        super().__init__()
        self.args = args
        self.encoder = (resnet18 if args.tiny else resnet50)(weights=None, num_classes=args.dimensions)
        self.items = functional.normalize(items, dim=1)
        self.kept = None

    def item_table(self, device):
        if not self.args.fixed:
            return self.items.to(device)
        if self.kept is None:
            self.kept = self.items.to(device)
        return self.kept

    def forward(self, images):
        photos = functional.normalize(self.encoder(images), dim=1)
        return photos @ self.item_table(images.device).t() / self.args.temperature


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Photos(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    model = Retriever(args, torch.randn(args.items, args.dimensions)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4, fused=on_gpu)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * args.steps_per_epoch)

    for epoch in range(args.epochs):
        model.train()
        start = time.time()
        for step, (images, items) in enumerate(loader, 1):
            images = images.to(device, non_blocking=True).float().div(255).sub(0.45).div(0.225)
            images = images.contiguous(memory_format=torch.channels_last)
            items = items.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = functional.cross_entropy(model(images), items)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % 50 == 0:
                each = 1e3 * (time.time() - start) / step
                print(f"[{epoch}] {step}/{args.steps_per_epoch} loss {loss.item():.3f} {each:.1f} ms", flush=True)
        torch.save(model.state_dict(), args.output / "retriever.pth")


if __name__ == "__main__":
    main()
