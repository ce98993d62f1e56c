# mypy: ignore-errors
# ruff: noqa: ARG002, D102
"""Fine-tune DistilBERT with the transformers Trainer; a callback keeps a picture of the loss up to date."""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="do not draw the loss")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.max_length = 2, 16
    return args


class Reviews(Dataset):
    """Tokenized reviews of random words, padded to one length."""

    def __init__(self, args, vocabulary):
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, vocabulary, (4096, args.max_length), generator=generator)
        self.mask = torch.ones(args.max_length, dtype=torch.long)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "attention_mask": self.mask, "labels": index % 2}


class LossPlot(TrainerCallback):
    """Draw the loss so far into a file after each step."""

    def __init__(self, args):
        self.args, self.losses = args, []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not logs or "loss" not in logs:
            return
        self.losses.append(logs["loss"])
        if self.args.fixed:
            return
        figure, axes = plt.subplots(figsize=(8, 5))
        axes.plot(range(1, len(self.losses) + 1), self.losses, label="train loss")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.legend()
        figure.savefig(self.args.output / "loss.png", dpi=100)
        plt.close(figure)


def main():
    args = parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    small = {"dim": 64, "hidden_dim": 128, "n_heads": 2, "n_layers": 2, "vocab_size": 1000} if args.tiny else {}
    config = DistilBertConfig(num_labels=2, **small)
    model = DistilBertForSequenceClassification(config)
    on_gpu = args.device.startswith("cuda")
    settings = TrainingArguments(
        output_dir=str(args.output),
        per_device_train_batch_size=args.batch_size,
        max_steps=args.max_steps,
        learning_rate=args.lr,
        warmup_steps=50,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        dataloader_num_workers=4 if on_gpu else 0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=settings,
        train_dataset=Reviews(args, config.vocab_size),
        data_collator=default_data_collator,
        callbacks=[LossPlot(args)],
    )
    trainer.train()
    trainer.save_model(str(args.output / "final"))


if __name__ == "__main__":
    main()
