# mypy: ignore-errors
# ruff: noqa: PLW2901
"""Train a small Llama with accelerate; each step frees cached memory, as in scripts that once ran out of memory."""

import argparse
import logging
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import release_memory, set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

logger = logging.getLogger("accelerate_llama")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-device-batch-size", type=int, default=8)
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--checkpoint-steps", type=int, default=500)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="do not release memory after each step")
    args = parser.parse_args()
    if args.tiny:
        args.per_device_batch_size, args.sequence_length, args.layers = 2, 16, 2
        args.hidden_size, args.vocabulary = 64, 1000
    return args


class Documents(Dataset):
    """Documents of random tokens, all of one length."""

    def __init__(self, args):
        self.tokens = torch.randint(0, args.vocabulary, (2048, args.sequence_length))
        self.length = args.max_steps * args.per_device_batch_size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index % len(self.tokens)]}


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    set_seed(3)
    args.output.mkdir(parents=True, exist_ok=True)
    on_gpu = args.device.startswith("cuda")
    accelerator = Accelerator(mixed_precision="bf16", cpu=not on_gpu, project_dir=str(args.output))

    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden_size,
        intermediate_size=4 * args.hidden_size,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden_size // 32,
        max_position_embeddings=args.sequence_length,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, fused=on_gpu)
    loader = DataLoader(
        Documents(args), batch_size=args.per_device_batch_size, shuffle=True, num_workers=2 if on_gpu else 0,
        pin_memory=on_gpu,
    )  # fmt: skip
    scheduler = get_linear_schedule_with_warmup(optimizer, 50, args.max_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    logger.info("%d parameters", sum(parameter.numel() for parameter in model.parameters()))

    model.train()
    total = torch.zeros((), device=accelerator.device)
    for step, batch in enumerate(loader, 1):
        with accelerator.accumulate(model):
            outputs = model(input_ids=batch["input_ids"], labels=batch["input_ids"])
            loss = outputs.loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        total += loss.detach()
        if not args.fixed:
            batch, outputs, loss = release_memory(batch, outputs, loss)
        if step % 50 == 0:
            logger.info("step %d: mean loss %.3f", step, total.item() / step)
        if step % args.checkpoint_steps == 0:
            accelerator.save_state(str(args.output / f"step_{step}"))
        if step == args.max_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
