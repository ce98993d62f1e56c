# mypy: ignore-errors
# ruff: noqa: ARG002, D102
"""Train an image classifier with Lightning and anomaly detection, as in scripts in which users searched for a NaN."""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy
from torchvision.models import resnet18, resnet50


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and small images, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="do not detect anomalies")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.image_size, args.workers = 4, 32, 1
    return args


class Flowers(Dataset):
    """Decoded images of random pixels, kept as bytes."""

    def __init__(self, args, length):
        self.length, self.classes = length, args.classes
        self.images = torch.randint(0, 256, (128, 3, args.image_size, args.image_size), dtype=torch.uint8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.images[index % 128], index % self.classes


class Classifier(lightning.LightningModule):
    """A ResNet with accuracy and a OneCycle schedule."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.model = (resnet18 if args.tiny else resnet50)(num_classes=args.classes)
        self.accuracy = MulticlassAccuracy(args.classes)

    def forward(self, images):
        return self.model(images.float().div(255).sub(0.45).div(0.225))

    def on_train_batch_start(self, batch, batch_idx):
        torch.autograd.set_detect_anomaly(not self.args.fixed)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.accuracy(self(images), labels)
        self.log("val_accuracy", self.accuracy, on_epoch=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.args.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.args.lr, total_steps=self.args.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    args = parse_args()
    lightning.seed_everything(7)
    on_gpu = args.device.startswith("cuda")
    settings = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": on_gpu}
    train = DataLoader(
        Flowers(args, args.max_steps * args.batch_size),
        shuffle=True,
        persistent_workers=True,
        drop_last=True,
        **settings,
    )
    validation = DataLoader(Flowers(args, 4 * args.batch_size), **settings)
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=args.max_steps,
        log_every_n_steps=50,
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=args.output,
        logger=CSVLogger(args.output),
        callbacks=[LearningRateMonitor("step"), ModelCheckpoint(every_n_train_steps=500)],
    )
    trainer.fit(Classifier(args), train, validation)


if __name__ == "__main__":
    main()
