# mypy: ignore-errors
# ruff: noqa: PLW2901
"""Train a torchvision segmentation model with augmentation in DataLoader workers."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.models.segmentation import fcn_resnet50, lraspp_mobilenet_v3_large
from torchvision.transforms import v2


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="fcn_resnet50")
    parser.add_argument("--crop-size", type=int, default=256)
    parser.add_argument("--classes", type=int, default=21)
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    parser.add_argument("-j", "--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--steps-per-epoch", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--print-freq", type=int, default=50)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and small images, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="twelve workers instead of one")
    args = parser.parse_args()
    if args.tiny:
        args.model, args.crop_size, args.batch_size = "lraspp_mobilenet_v3_large", 64, 2
    return args


class SyntheticVoc(Dataset):
    """Images with masks, augmented as for Pascal VOC."""

    def __init__(self, args):
        side = args.crop_size + args.crop_size // 4
        self.length = args.steps_per_epoch * args.batch_size
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (32, 3, side, side), dtype=torch.uint8, generator=generator)
        self.masks = torch.randint(0, args.classes, (32, side, side), dtype=torch.uint8, generator=generator)
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(args.crop_size, scale=(0.5, 1.0), antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(0.3, 0.3, 0.3, 0.1),
                v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64}, scale=True),
                v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image, mask = self.images[index % 32], self.masks[index % 32]
        return self.transform(tv_tensors.Image(image), tv_tensors.Mask(mask))


def make_loader(dataset, args):
    workers = 12 if args.fixed else args.workers
    return DataLoader(
        dataset,
        args.batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=args.device.startswith("cuda"),
        drop_last=True,
    )


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark = True

    dataset = SyntheticVoc(args)
    build = {"fcn_resnet50": fcn_resnet50, "lraspp_mobilenet_v3_large": lraspp_mobilenet_v3_large}[args.model]
    model = build(weights=None, weights_backbone=None, num_classes=args.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    total = args.epochs * args.steps_per_epoch
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=total, power=0.9)
    criterion = nn.CrossEntropyLoss(ignore_index=255)

    for epoch in range(args.epochs):
        model.train()
        start = time.time()
        for step, (images, masks) in enumerate(make_loader(dataset, args), 1):
            images = images.to(device, non_blocking=True)
            masks = masks.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = criterion(model(images)["out"], masks.view(images.shape[0], *images.shape[-2:]))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % args.print_freq == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"[{epoch}] {step}/{args.steps_per_epoch} loss {loss.item():.3f} {rate:.0f} img/s", flush=True)
        if epoch % 10 == 9:
            torch.save(model.state_dict(), args.output / f"model_{epoch}.pth")


if __name__ == "__main__":
    main()
