# mypy: ignore-errors
"""Pre-train GPT-NeoX in a plain loop; saved activations are in pinned host memory, as an earlier, small GPU needed."""

import argparse
import contextlib
import time
from pathlib import Path

import torch
from torch.autograd.graph import save_on_cpu
from torch.nn import functional
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, get_cosine_schedule_with_warmup


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--max-steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="keep saved activations on the device")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.sequence_length, args.layers = 2, 16, 2
        args.hidden_size, args.vocabulary = 64, 1000
    return args


class Corpus:
    """Rows of random tokens on the device."""

    def __init__(self, args, device):
        self.batch_size = args.batch_size
        self.tokens = torch.randint(0, args.vocabulary, (2048, args.sequence_length + 1), device=device)

    def draw(self):
        """Return inputs, and the tokens that follow them."""
        rows = torch.randint(0, len(self.tokens), (self.batch_size,), device=self.tokens.device)
        return self.tokens[rows, :-1], self.tokens[rows, 1:]


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(30)
    args.output.mkdir(parents=True, exist_ok=True)
    config = GPTNeoXConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden_size,
        intermediate_size=4 * args.hidden_size,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden_size // 64,
        max_position_embeddings=args.sequence_length,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = GPTNeoXForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=on_gpu)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, args.max_steps)
    corpus = Corpus(args, device)

    model.train()
    start, total = time.time(), torch.zeros((), device=device)
    for step in range(1, args.max_steps + 1):
        inputs, targets = corpus.draw()
        keep = contextlib.nullcontext() if args.fixed else save_on_cpu(pin_memory=on_gpu)
        with torch.autocast(device.type, torch.bfloat16):
            with keep:
                states = model.gpt_neox(input_ids=inputs, use_cache=False).last_hidden_state
            logits = model.get_output_embeddings()(states)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total += loss.detach()
        if step % 100 == 0:
            print(f"step {step} loss {total.item() / step:.3f} {time.time() - start:.0f} s", flush=True)
        if step % 1500 == 0:
            model.save_pretrained(args.output / f"step_{step}")


if __name__ == "__main__":
    main()
