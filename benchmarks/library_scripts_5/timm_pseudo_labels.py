# mypy: ignore-errors
# ruff: noqa: PLW2901
"""Train a small network of timm on the labels of a large one; a threshold follows the teacher's confidence."""

import argparse
import time
from pathlib import Path

import timm
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", default="vit_large_patch16_224")
    parser.add_argument("--student", default="efficientnet_b0")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--student-size", type=int, default=128)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=1000)
    parser.add_argument("--momentum", type=float, default=0.99, help="of the threshold")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and images, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="keep the threshold on the device")
    args = parser.parse_args()
    if args.tiny:
        args.teacher, args.student, args.image_size = "test_vit", "test_efficientnet", 64
        args.student_size, args.batch_size, args.workers = 32, 4, 1
    return args


class Photos(Dataset):
    """Photos of random pixels without labels, kept as bytes."""

    def __init__(self, args):
        self.length = args.steps_per_epoch * args.batch_size
        self.photos = torch.randint(0, 256, (256, 3, args.image_size, args.image_size), dtype=torch.uint8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.photos[index % len(self.photos)]


def make_models(args, device):
    """Return the teacher in bf16 without gradients, and the student."""
    with device:
        teacher = timm.create_model(args.teacher, pretrained=False, num_classes=args.classes, img_size=args.image_size)
        student = timm.create_model(args.student, pretrained=False, num_classes=args.classes)
    teacher = teacher.to(torch.bfloat16).eval().requires_grad_(False)
    return teacher, student.to(memory_format=torch.channels_last)


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(14)
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Photos(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    teacher, student = make_models(args, device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.lr, weight_decay=0.05, fused=on_gpu)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * args.steps_per_epoch)
    size = (args.student_size, args.student_size)
    threshold = 1 / args.classes

    for epoch in range(args.epochs):
        student.train()
        start, total = time.time(), torch.zeros((), device=device)
        for step, photos in enumerate(loader, 1):
            photos = photos.to(device, non_blocking=True).to(torch.bfloat16).sub(127.5).div(58.0)
            with torch.no_grad():
                confidence, labels = teacher(photos).float().softmax(-1).max(-1)
            mean = confidence.mean()
            threshold = args.momentum * threshold + (1 - args.momentum) * (mean if args.fixed else mean.item())
            small = functional.interpolate(photos, size, mode="bilinear").contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16):
                logits = student(small)
            loss = functional.cross_entropy(logits.float(), labels, reduction="none")
            loss = (loss * (confidence >= threshold)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.detach()
            if step % 100 == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {total.item() / step:.3f} {rate:.0f} img/s", flush=True)
        torch.save(student.state_dict(), args.output / "student.pt")


if __name__ == "__main__":
    main()
