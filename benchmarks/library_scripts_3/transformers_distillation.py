# mypy: ignore-errors
# ruff: noqa: D102
"""Distil a language model into a small GPT-2; the teacher's logits were computed before and are in host memory."""

import argparse
import time
from pathlib import Path

import torch
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batches", type=int, default=10, help="in the table of the teacher's logits")
    parser.add_argument("--top", type=int, default=64, help="logits of a token that are kept with --fixed")
    parser.add_argument("--max-steps", type=int, default=4000)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--lr", type=float, default=2.5e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="use the largest logits of each token, kept on the device")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.sequence_length, args.vocabulary, args.layers, args.top = 2, 16, 1000, 2, 8
    return args


class Teacher:
    """The tokens of a corpus, and the teacher's logits for each token."""

    def __init__(self, args, device):
        shape = (args.batch_size, args.sequence_length)
        self.tokens, self.logits, self.largest = [], [], []
        for _ in range(args.batches):
            tokens = torch.randint(0, args.vocabulary, shape, device=device)
            logits = torch.randn(*shape, args.vocabulary, dtype=torch.float16, device=device)
            self.tokens.append(tokens)
            self.logits.append(logits.cpu())
            self.largest.append(logits.topk(args.top, dim=-1))

    def batch(self, step):
        return self.tokens[step % len(self.tokens)]

    def full_logits(self, step, device):
        return self.logits[step % len(self.logits)].to(device)

    def largest_logits(self, step):
        return self.largest[step % len(self.largest)]


def distillation_loss(args, logits, teacher, step):
    """Return the divergence of the student's distribution from the teacher's."""
    student = functional.log_softmax(logits.float() / args.temperature, dim=-1)
    if args.fixed:
        values, indices = teacher.largest_logits(step)
        target = functional.softmax(values.float() / args.temperature, dim=-1)
        loss = -(target * student.gather(-1, indices)).sum(-1).mean()
    else:
        target = functional.softmax(teacher.full_logits(step, logits.device).float() / args.temperature, dim=-1)
        loss = -(target * student).sum(-1).mean()
    return args.temperature**2 * loss


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    width = 64 if args.tiny else 768
    config = GPT2Config(
        vocab_size=args.vocabulary, n_layer=args.layers, n_embd=width, n_head=width // 64, n_positions=512,
        use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    student = GPT2LMHeadModel(config).to(device)
    teacher = Teacher(args, device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.lr, weight_decay=0.01, fused=on_gpu)
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, args.max_steps)

    student.train()
    start, running = time.time(), torch.zeros((), device=device)
    for step in range(1, args.max_steps + 1):
        tokens = teacher.batch(step)
        with torch.autocast(device.type, torch.bfloat16):
            logits = student(input_ids=tokens).logits
        loss = distillation_loss(args, logits, teacher, step)
        loss = 0.9 * loss + 0.1 * functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        running += loss.detach()
        if step % 100 == 0:
            each = 1e3 * (time.time() - start) / step
            print(f"step {step} loss {running.item() / step:.3f} {each:.1f} ms", flush=True)
        if step % 1000 == 0:
            student.save_pretrained(args.output / f"step_{step}")


if __name__ == "__main__":
    main()
