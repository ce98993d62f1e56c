# mypy: ignore-errors
# ruff: noqa: ARG002, D102
"""Pre-train an ESM model on protein sequences with the transformers Trainer and the eager attention."""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import EsmConfig, EsmForMaskedLM, Trainer, TrainerCallback, TrainingArguments, set_seed

PAD, MASK, ACIDS, VOCABULARY = 1, 32, (4, 24), 33


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--sequence-length", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--mask-probability", type=float, default=0.15)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="PyTorch's scaled_dot_product_attention")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.sequence_length, args.layers, args.hidden_size, args.workers = 2, 32, 2, 64, 1
    return args


class Proteins(Dataset):
    """Random amino acids, some of them masked."""

    def __init__(self, options):
        self.options = options
        self.acids = torch.randint(*ACIDS, (2048, options.sequence_length))

    def __len__(self):
        return self.options.max_steps * self.options.batch_size

    def __getitem__(self, index):
        acids = self.acids[index % len(self.acids)]
        masked = torch.rand(acids.shape) < self.options.mask_probability
        return {"input_ids": acids.masked_fill(masked, MASK), "labels": acids.masked_fill(~masked, -100)}


class AttentionChoice(TrainerCallback):
    """Choose the implementation of attention; `eager` also returns the weights, which users plot after training."""

    def __init__(self, options):
        self.options = options

    def on_step_begin(self, args, state, control, model=None, **named):
        wanted = "sdpa" if self.options.fixed else "eager"
        if model.config._attn_implementation != wanted:  # noqa: SLF001
            model.set_attn_implementation(wanted)


def main():
    options = parse_args()
    set_seed(21)
    options.output.mkdir(parents=True, exist_ok=True)
    on_gpu = options.device.startswith("cuda")
    config = EsmConfig(
        vocab_size=VOCABULARY,
        mask_token_id=MASK,
        pad_token_id=PAD,
        hidden_size=options.hidden_size,
        intermediate_size=4 * options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden_size // 64,
        max_position_embeddings=options.sequence_length + 2,
        position_embedding_type="rotary",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        token_dropout=False,
        emb_layer_norm_before=False,
        attn_implementation="eager",
    )
    settings = TrainingArguments(
        output_dir=str(options.output),
        per_device_train_batch_size=options.batch_size,
        max_steps=options.max_steps,
        learning_rate=options.lr,
        warmup_steps=100,
        weight_decay=0.01,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        logging_nan_inf_filter=False,
        dataloader_num_workers=options.workers,
        dataloader_drop_last=True,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=EsmForMaskedLM(config),
        args=settings,
        train_dataset=Proteins(options),
        callbacks=[AttentionChoice(options)],
    )
    trainer.train()
    trainer.save_model(str(options.output / "final"))


if __name__ == "__main__":
    main()
