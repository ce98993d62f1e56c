# mypy: ignore-errors
# ruff: noqa: PLW2901
"""Train a ConvNeXt of timm with an exponential moving average of its weights on the device."""

import argparse
import time
from pathlib import Path

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch.utils.data import DataLoader, Dataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="convnext_tiny")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("-b", "--batch-size", type=int, default=128)
    parser.add_argument("-j", "--workers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ema-decay", type=float, default=0.9998)
    parser.add_argument("--log-interval", type=int, default=50)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and small images, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.model, args.image_size, args.batch_size, args.workers = "convnext_atto", 64, 2, 1
    return args


class Birds(Dataset):
    """Decoded images of random pixels, kept as bytes."""

    def __init__(self, args):
        self.length, self.classes = args.steps_per_epoch * args.batch_size, args.classes
        self.images = torch.randint(0, 256, (256, 3, args.image_size, args.image_size), dtype=torch.uint8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image = self.images[index % 256]
        return image.flip(-1) if torch.rand(()) < 0.5 else image, index % self.classes


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(42)
    torch.backends.cudnn.benchmark = True
    args.output.mkdir(parents=True, exist_ok=True)

    loader = DataLoader(
        Birds(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    model = timm.create_model(args.model, pretrained=False, num_classes=args.classes, drop_path_rate=0.1)
    model = model.to(device, memory_format=torch.channels_last)
    ema = ModelEmaV3(model, decay=args.ema_decay)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).mul(255).view(1, 3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225], device=device).mul(255).view(1, 3, 1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=on_gpu)
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=2, warmup_lr_init=1e-6)
    criterion = LabelSmoothingCrossEntropy(smoothing=0.1)

    step = 0
    for epoch in range(args.epochs):
        model.train()
        start = time.time()
        for images, labels in loader:
            images = images.to(device, non_blocking=True).sub(mean).div(deviation)
            images = images.contiguous(memory_format=torch.channels_last)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            ema.update(model, step=step)
            if step % args.log_interval == 0:
                rate, start = args.log_interval * args.batch_size / (time.time() - start), time.time()
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} {rate:.0f} img/s", flush=True)
        scheduler.step(epoch + 1)
        torch.save({"model": model.state_dict(), "ema": ema.module.state_dict()}, args.output / "last.pth")


if __name__ == "__main__":
    main()
