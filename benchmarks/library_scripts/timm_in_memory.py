# mypy: ignore-errors
"""Train a timm vision transformer on images that fit into the host's memory."""

import argparse
import time
from pathlib import Path

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("-b", "--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--mixup", type=float, default=0.2)
    parser.add_argument("--log-interval", type=int, default=50)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and few images, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="copy batches from pinned memory")
    args = parser.parse_args()
    if args.tiny:
        args.model, args.images, args.batch_size = "vit_tiny_patch16_224", 8, 2
    return args


def load_images(args):
    """Load the data set into memory; random pixels stand for decoded images."""
    generator = torch.Generator().manual_seed(42)
    images = torch.rand(args.images, 3, 224, 224, generator=generator).sub_(0.5).div_(0.25)
    labels = torch.randint(0, args.classes, (args.images,), generator=generator)
    return images, labels


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(42)
    args.output.mkdir(parents=True, exist_ok=True)

    images, labels = load_images(args)
    pinned = images.pin_memory() if device.type == "cuda" else images
    model = timm.create_model(args.model, pretrained=False, num_classes=args.classes, drop_path_rate=0.1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=device.type == "cuda")
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=5, warmup_lr_init=1e-6)
    mixup = Mixup(mixup_alpha=args.mixup, num_classes=args.classes, label_smoothing=0.1)
    criterion = SoftTargetCrossEntropy()
    losses = AverageMeter()

    step, start = 0, time.time()
    for epoch in range(args.epochs):
        model.train()
        for first in torch.randperm(args.images // args.batch_size).mul(args.batch_size).tolist():
            source = pinned if args.fixed else images
            inputs = source[first : first + args.batch_size].to(device, non_blocking=True)
            targets = labels[first : first + args.batch_size].to(device, non_blocking=True)
            inputs, targets = mixup(inputs, targets)
            with torch.autocast(device.type, torch.bfloat16):
                loss = criterion(model(inputs), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % args.log_interval == 0:
                losses.update(loss.item(), args.batch_size)
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {losses.avg:.3f} {rate:.0f} img/s", flush=True)
        scheduler.step(epoch + 1)
    torch.save({"model": model.state_dict(), "args": vars(args)}, args.output / "last.pth")


if __name__ == "__main__":
    main()
