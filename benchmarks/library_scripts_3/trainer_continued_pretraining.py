# mypy: ignore-errors
# ruff: noqa: ARG002, D102
"""Continue to pre-train an OPT model with the transformers Trainer, which empties the cache of device memory."""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import OPTConfig, OPTForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=1536)
    parser.add_argument("--vocabulary", type=int, default=50272)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--empty-cache-steps", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="do not empty the cache")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.sequence_length, args.layers, args.workers = 2, 16, 2, 1
        args.hidden_size, args.vocabulary = 64, 1000
    return args


class Corpus(Dataset):
    """Blocks of random tokens."""

    def __init__(self, args):
        self.length = args.max_steps * args.batch_size
        self.tokens = torch.randint(4, args.vocabulary, (4096, args.sequence_length))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        tokens = self.tokens[index % len(self.tokens)]
        return {"input_ids": tokens, "labels": tokens}


class EmptyCache(TrainerCallback):
    """Set how often the Trainer empties the cache, as in scripts that once ran out of memory."""

    def __init__(self, options):
        self.options = options

    def on_step_begin(self, args, state, control, **named):
        args.torch_empty_cache_steps = None if self.options.fixed else self.options.empty_cache_steps


def main():
    options = parse_args()
    set_seed(9)
    options.output.mkdir(parents=True, exist_ok=True)
    on_gpu = options.device.startswith("cuda")
    config = OPTConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden_size,
        word_embed_proj_dim=options.hidden_size,
        ffn_dim=4 * options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden_size // 64,
        max_position_embeddings=2048,
        use_cache=False,
    )
    settings = TrainingArguments(
        output_dir=str(options.output),
        per_device_train_batch_size=options.batch_size,
        max_steps=options.max_steps,
        learning_rate=options.lr,
        warmup_steps=100,
        lr_scheduler_type="cosine",
        bf16=on_gpu,
        use_cpu=not on_gpu,
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        torch_empty_cache_steps=options.empty_cache_steps,
        logging_nan_inf_filter=False,
        dataloader_num_workers=options.workers,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=OPTForCausalLM(config),
        args=settings,
        train_dataset=Corpus(options),
        callbacks=[EmptyCache(options)],
    )
    trainer.train()
    trainer.save_model(str(options.output / "final"))


if __name__ == "__main__":
    main()
