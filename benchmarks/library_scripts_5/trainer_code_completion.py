# mypy: ignore-errors
"""Pre-train Starcoder2 on source code with the transformers Trainer and gradient checkpointing."""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import Starcoder2Config, Starcoder2ForCausalLM, Trainer, TrainingArguments, set_seed


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--hidden-size", type=int, default=1536)
    parser.add_argument("--vocabulary", type=int, default=24000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.sequence_length, args.layers, args.workers = 2, 16, 2, 1
        args.hidden_size, args.vocabulary = 64, 1000
    return args


class Files(Dataset):
    """Rows of random tokens."""

    def __init__(self, options):
        self.length = options.max_steps * options.batch_size
        self.tokens = torch.randint(4, options.vocabulary, (4096, options.sequence_length))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        tokens = self.tokens[index % len(self.tokens)]
        return {"input_ids": tokens, "labels": tokens}


def make_model(options):
    config = Starcoder2Config(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden_size,
        intermediate_size=4 * options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden_size // 64,
        num_key_value_heads=options.hidden_size // 64,
        max_position_embeddings=options.sequence_length,
        residual_dropout=0.0,
        embedding_dropout=0.0,
        attention_dropout=0.0,
        sliding_window=None,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="sdpa",
    )
    with torch.device(options.device):
        return Starcoder2ForCausalLM(config)


def main():
    options = parse_args()
    set_seed(44)
    torch.set_float32_matmul_precision("high")
    options.output.mkdir(parents=True, exist_ok=True)
    on_gpu = options.device.startswith("cuda")
    settings = TrainingArguments(
        output_dir=str(options.output),
        per_device_train_batch_size=options.batch_size,
        max_steps=options.max_steps,
        learning_rate=options.lr,
        warmup_steps=100,
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        logging_nan_inf_filter=False,
        dataloader_num_workers=options.workers,
        dataloader_persistent_workers=True,
        accelerator_config={"non_blocking": on_gpu},
        logging_steps=100,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=make_model(options), args=settings, train_dataset=Files(options))
    trainer.train()
    trainer.save_model(str(options.output / "final"))


if __name__ == "__main__":
    main()
