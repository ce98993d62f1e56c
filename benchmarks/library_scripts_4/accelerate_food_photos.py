# mypy: ignore-errors
# ruff: noqa: D102
"""Train a vision transformer of timm with accelerate; two workers decode JPEG photos with Pillow."""

import argparse
import io
import logging
from pathlib import Path

import numpy as np
import timm
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

logger = logging.getLogger("accelerate_food_photos")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="deit3_base_patch16_224")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--photo-size", type=int, nargs=2, default=(512, 384))
    parser.add_argument("--photos", type=int, default=128)
    parser.add_argument("--dishes", type=int, default=101)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps-per-epoch", type=int, default=1500)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and small photos, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="use photos that were decoded before training")
    args = parser.parse_args()
    if args.tiny:
        args.model, args.photo_size, args.photos, args.batch_size = "deit_tiny_patch16_224", (80, 60), 8, 2
        args.image_size, args.depth = 32, 2
    return args


class FoodPhotos(Dataset):
    """JPEG files in memory; each access decodes one, and crops and resizes it at random."""

    def __init__(self, args):
        self.args = args
        random = np.random.default_rng(3)
        small = random.integers(0, 256, (args.photos, 48, 64, 3), dtype=np.uint8)
        self.files = [self.encode(Image.fromarray(pixels).resize(args.photo_size)) for pixels in small]
        self.decoded = [self.load(number) for number in range(args.photos)]

    @staticmethod
    def encode(photo):
        buffer = io.BytesIO()
        photo.save(buffer, "JPEG", quality=92)
        return buffer.getvalue()

    def load(self, number):
        photo = Image.open(io.BytesIO(self.files[number])).convert("RGB")
        width, height = photo.size
        scale = np.random.uniform(0.6, 1.0)
        left, top = np.random.uniform(0, (1 - scale) * width), np.random.uniform(0, (1 - scale) * height)
        box = (left, top, left + scale * width, top + scale * height)
        crop = photo.resize((self.args.image_size, self.args.image_size), Image.Resampling.BICUBIC, box=box)
        if np.random.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.asarray(crop).transpose(2, 0, 1).copy())

    def __len__(self):
        return self.args.steps_per_epoch * self.args.batch_size

    def __getitem__(self, index):
        number = index % len(self.files)
        photo = self.decoded[number] if self.args.fixed else self.load(number)
        return photo, number % self.args.dishes


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    set_seed(8)
    args.output.mkdir(parents=True, exist_ok=True)
    on_gpu = args.device.startswith("cuda")
    accelerator = Accelerator(mixed_precision="bf16", cpu=not on_gpu, project_dir=str(args.output))
    loader = DataLoader(
        FoodPhotos(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    model = timm.create_model(
        args.model, pretrained=False, num_classes=args.dishes, img_size=args.image_size, depth=args.depth
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=on_gpu)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=accelerator.device)
        for step, (photos, dishes) in enumerate(loader, 1):
            logits = model(photos.float().sub(127.5).div(58.0))
            loss = functional.cross_entropy(logits, dishes, label_smoothing=0.1)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            if step % 50 == 0:
                logger.info("epoch %d step %d: mean loss %.3f", epoch, step, total.item() / step)
        accelerator.save_model(model, str(args.output / f"epoch_{epoch}"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
