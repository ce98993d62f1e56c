# mypy: ignore-errors
# ruff: noqa: ARG002, D102
"""Recognize plant diseases on leaves with Lightning and a ResNet of timm; OpenCV augments the photos."""

import argparse
from pathlib import Path

import cv2
import lightning
import numpy as np
import timm
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--diseases", type=int, default=38)
    parser.add_argument("--photo-size", type=int, default=400)
    parser.add_argument("--crop-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and small photos, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="use crops that were augmented before training")
    args = parser.parse_args()
    if args.tiny:
        args.model, args.photo_size, args.crop_size, args.batch_size = "resnet18", 100, 64, 2
    return args


class Leaves(Dataset):
    """Photos of random shapes; each access rotates, scales, recolours and blurs a photo."""

    def __init__(self, args):
        self.args = args
        random = np.random.default_rng(0)
        small = random.integers(0, 256, (64, 25, 25, 3), dtype=np.uint8)
        size = (args.photo_size, args.photo_size)
        self.photos = [cv2.resize(photo, size, interpolation=cv2.INTER_CUBIC) for photo in small]
        self.augmented = [self.augment(photo) for photo in self.photos]

    def __len__(self):
        return self.args.max_steps * self.args.batch_size

    def augment(self, photo):
        side, crop = self.args.photo_size, self.args.crop_size
        hsv = cv2.cvtColor(photo, cv2.COLOR_RGB2HSV).astype(np.float32)
        hsv *= np.random.uniform((0.95, 0.7, 0.7), (1.05, 1.3, 1.3)).astype(np.float32)
        photo = cv2.cvtColor(np.clip(hsv, 0, (179, 255, 255)).astype(np.uint8), cv2.COLOR_HSV2RGB)
        angle, scale = np.random.uniform(-45, 45), np.random.uniform(0.9, 1.4)
        rotation = cv2.getRotationMatrix2D((side / 2, side / 2), angle, scale)
        rotation[:, 2] -= (side - crop) / 2
        photo = cv2.warpAffine(photo, rotation, (crop, crop), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101)
        if np.random.random() < 0.5:
            photo = cv2.GaussianBlur(photo, (5, 5), np.random.uniform(0.1, 2.0))
        if np.random.random() < 0.5:
            photo = cv2.flip(photo, 1)
        return torch.from_numpy(photo.transpose(2, 0, 1).copy())

    def __getitem__(self, index):
        number = index % len(self.photos)
        photo = self.augmented[number] if self.args.fixed else self.augment(self.photos[number])
        return photo, number % self.args.diseases


class LeafClassifier(lightning.LightningModule):
    """A ResNet for crops that are normalized on the device."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.model = timm.create_model(args.model, pretrained=False, num_classes=args.diseases)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        photos, diseases = batch
        return photos.float().sub(127.5).div(58.0).contiguous(memory_format=torch.channels_last), diseases

    def training_step(self, batch, batch_idx):
        photos, diseases = batch
        loss = functional.cross_entropy(self.model(photos), diseases, label_smoothing=0.1)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.args.lr, fused=self.args.device.startswith("cuda"))


def main():
    args = parse_args()
    lightning.seed_everything(42)
    cv2.setNumThreads(0)
    on_gpu = args.device.startswith("cuda")
    loader = DataLoader(
        Leaves(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True
    )
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=args.max_steps,
        log_every_n_steps=50,
        benchmark=True,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=args.output,
        logger=CSVLogger(args.output),
        callbacks=[ModelCheckpoint(every_n_train_steps=1000)],
    )
    model = LeafClassifier(args).to(memory_format=torch.channels_last)
    trainer.fit(model, loader)


if __name__ == "__main__":
    main()
