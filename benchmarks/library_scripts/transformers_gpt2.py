# mypy: ignore-errors
"""Pre-train GPT-2 from the transformers library in a loop written by hand, in bf16 with SDPA."""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument("--max-iters", type=int, default=1000)
    parser.add_argument("--eval-interval", type=int, default=500)
    parser.add_argument("--log-interval", type=int, default=50)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.block_size = 2, 32
    return args


def get_batch(tokens, args, device):
    """Draw a batch of sequences and start its copy to the device."""
    starts = np.random.randint(0, len(tokens) - args.block_size - 1, args.batch_size)
    batch = torch.from_numpy(np.stack([tokens[at : at + args.block_size] for at in starts]).astype(np.int64))
    if device.type == "cuda":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)


@torch.no_grad()
def evaluate(model, tokens, args, device):
    model.eval()
    losses = []
    for _ in range(10):
        batch = get_batch(tokens, args, device)
        with torch.autocast(device.type, torch.bfloat16):
            losses.append(model(input_ids=batch, labels=batch, use_cache=False).loss)
    model.train()
    return torch.stack(losses).mean().item()


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high")
    args.output.mkdir(parents=True, exist_ok=True)

    small = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000} if args.tiny else {"vocab_size": 50304}
    config = GPT2Config(
        n_positions=args.block_size,
        attn_implementation="sdpa",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        **small,
    )
    model = GPT2LMHeadModel(config).to(device)
    model.train()
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 1 << 21, dtype=np.uint16)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=device.type == "cuda"
    )
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, args.max_iters)

    best, start = math.inf, time.time()
    batch = get_batch(tokens, args, device)
    for iteration in range(1, args.max_iters + 1):
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        batch = get_batch(tokens, args, device)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if iteration % args.log_interval == 0:
            elapsed, start = time.time() - start, time.time()
            rate = args.log_interval * args.batch_size * args.block_size / elapsed
            print(f"iter {iteration}: loss {loss.item():.4f}, {rate:.0f} tokens/s", flush=True)
        if iteration % args.eval_interval == 0:
            validation = evaluate(model, tokens, args, device)
            if validation < best:
                best = validation
                torch.save({"model": model.state_dict(), "iteration": iteration}, args.output / "ckpt.pt")


if __name__ == "__main__":
    main()
