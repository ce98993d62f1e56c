# mypy: ignore-errors
"""Pre-train a small Qwen3 with accelerate: long batches in bf16, SDPA, and a fused optimizer."""

import argparse
import logging
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM, get_cosine_schedule_with_warmup

logger = logging.getLogger("accelerate_qwen")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--checkpoint-steps", type=int, default=1000)
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


class Shards(Dataset):
    """Rows of random tokens, all of one length."""

    def __init__(self, args):
        self.length = args.max_steps * args.batch_size
        self.tokens = torch.randint(0, args.vocabulary, (4096, args.sequence_length))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.tokens[index % 4096]


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    set_seed(2)
    args.output.mkdir(parents=True, exist_ok=True)
    on_gpu = args.device.startswith("cuda")
    accelerator = Accelerator(
        mixed_precision="bf16",
        cpu=not on_gpu,
        project_dir=str(args.output),
        dataloader_config=DataLoaderConfiguration(non_blocking=on_gpu),
    )
    config = Qwen3Config(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden_size,
        intermediate_size=3 * args.hidden_size,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden_size // 64,
        num_key_value_heads=args.hidden_size // 64,
        head_dim=64,
        max_position_embeddings=args.sequence_length,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=on_gpu)
    loader = DataLoader(
        Shards(args), batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu,
        persistent_workers=True, drop_last=True,
    )  # fmt: skip
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, args.max_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    total = torch.zeros((), device=accelerator.device)
    for step, tokens in enumerate(loader, 1):
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total += loss.detach()
        if step % 50 == 0:
            logger.info("step %d: mean loss %.3f", step, total.item() / step)
        if step % args.checkpoint_steps == 0:
            accelerator.save_state(str(args.output / f"step_{step}"))
        if step == args.max_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
