# mypy: ignore-errors
# ruff: noqa: ARG002, D102
"""Pre-train BERT on masked words with Lightning, in bf16 with batches from workers."""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

MASK = 103


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--mask-probability", type=float, default=0.15)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.sequence_length, args.workers = 2, 32, 1
    return args


class Sentences(Dataset):
    """Random tokens, some of them masked."""

    def __init__(self, args, vocabulary):
        self.args = args
        self.tokens = torch.randint(1000 if vocabulary > 2000 else 200, vocabulary, (4096, args.sequence_length))

    def __len__(self):
        return self.args.max_steps * self.args.batch_size

    def __getitem__(self, index):
        tokens = self.tokens[index % len(self.tokens)]
        masked = torch.rand(tokens.shape) < self.args.mask_probability
        return {"input_ids": tokens.masked_fill(masked, MASK), "labels": tokens.masked_fill(~masked, -100)}


class MaskedWords(lightning.LightningModule):
    """BERT with a head for masked words."""

    def __init__(self, args, config):
        super().__init__()
        self.args = args
        self.model = BertForMaskedLM(config)

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch).loss
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        fused = self.args.device.startswith("cuda")
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.args.lr, weight_decay=0.01, fused=fused)
        schedule = get_linear_schedule_with_warmup(optimizer, 100, self.args.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    args = parse_args()
    lightning.seed_everything(1)
    on_gpu = args.device.startswith("cuda")
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(**(small | {"vocab_size": 1000} if args.tiny else {}))
    loader = DataLoader(
        Sentences(args, config.vocab_size), args.batch_size, shuffle=True, num_workers=args.workers,
        pin_memory=on_gpu, persistent_workers=True, drop_last=True,
    )  # fmt: skip
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=args.max_steps,
        log_every_n_steps=50,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=args.output,
        logger=CSVLogger(args.output),
        callbacks=[LearningRateMonitor("step"), ModelCheckpoint(every_n_train_steps=500)],
    )
    trainer.fit(MaskedWords(args, config), loader)


if __name__ == "__main__":
    main()
