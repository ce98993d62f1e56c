# mypy: ignore-errors
# ruff: noqa: PLW2901
"""Train ResNet-50 from torchvision: channels-last, bf16, workers that return bytes, normalization on the GPU."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-b", "--batch-size", type=int, default=256)
    parser.add_argument("-j", "--workers", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--print-freq", type=int, default=50)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small images, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.image_size, args.workers = 2, 32, 1
    return args


class Cached(Dataset):
    """A data set of decoded images that fits into memory. The images are kept as bytes."""

    def __init__(self, args):
        self.length = args.steps_per_epoch * args.batch_size
        side = args.image_size
        self.images = torch.randint(0, 256, (256, 3, side, side), dtype=torch.uint8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.images[index % 256], index % 1000


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.backends.cudnn.benchmark = True
    args.output.mkdir(parents=True, exist_ok=True)

    on_gpu = device.type == "cuda"
    loader = DataLoader(
        Cached(args),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=on_gpu,
        persistent_workers=True,
        drop_last=True,
    )
    model = resnet50(weights=None).to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=0.9, weight_decay=5e-5, nesterov=True, fused=on_gpu
    )
    total = args.epochs * args.steps_per_epoch
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)
    mean = torch.tensor([123.7, 116.3, 103.5], device=device).view(1, 3, 1, 1)
    std = torch.tensor([58.4, 57.1, 57.4], device=device).view(1, 3, 1, 1)

    for epoch in range(args.epochs):
        model.train()
        running, start = torch.zeros((), device=device), time.time()
        for step, (images, labels) in enumerate(loader, 1):
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            images = images.float().sub(mean).div(std).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += loss.detach()
            if step % args.print_freq == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {running.item() / step:.3f} {rate:.0f} img/s", flush=True)
        torch.save({"epoch": epoch, "model": model.state_dict()}, args.output / "checkpoint.pth")


if __name__ == "__main__":
    main()
