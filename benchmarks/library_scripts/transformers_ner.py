# mypy: ignore-errors
# ruff: noqa: D102, PLW2901
"""Train BERT to tag tokens, in a loop written by hand; the F1 score of each batch is counted in Python."""

import argparse
from collections import Counter
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForTokenClassification, get_linear_schedule_with_warmup

TAGS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train-batch-size", type=int, default=80)
    parser.add_argument("--max-seq-length", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--num-train-epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--logging-steps", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="count the F1 score only when it is logged")
    args = parser.parse_args()
    if args.tiny:
        args.train_batch_size, args.max_seq_length = 2, 32
    return args


class Conll(Dataset):
    """Sentences of random tokens with random tags, padded to one length."""

    def __init__(self, args, vocabulary):
        self.length = args.steps_per_epoch * args.train_batch_size
        self.tokens = torch.randint(0, vocabulary, (2048, args.max_seq_length))
        self.labels = torch.randint(0, len(TAGS), (2048, args.max_seq_length))
        self.labels[:, args.max_seq_length * 7 // 8 :] = -100

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        row = index % 2048
        return {"input_ids": self.tokens[row], "labels": self.labels[row]}


class F1:
    """Micro-averaged F1 score of all tags except O."""

    def __init__(self):
        self.counts = Counter()

    def update(self, predictions, labels):
        for row, truth in zip(predictions.cpu().tolist(), labels.cpu().tolist(), strict=True):
            tagged = [(TAGS[p], TAGS[t]) for p, t in zip(row, truth, strict=True) if t != -100]
            self.counts["right"] += sum(p == t != "O" for p, t in tagged)
            self.counts["predicted"] += sum(p != "O" for p, _ in tagged)
            self.counts["present"] += sum(t != "O" for _, t in tagged)

    def compute(self):
        return 2 * self.counts["right"] / max(1, self.counts["predicted"] + self.counts["present"])


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(vocab_size=28996, num_labels=len(TAGS), **(small if args.tiny else {}))
    model = BertForTokenClassification(config).to(device)
    on_gpu = device.type == "cuda"
    loader = DataLoader(
        Conll(args, config.vocab_size), args.train_batch_size, shuffle=True, num_workers=2, pin_memory=on_gpu
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, fused=on_gpu)
    total = args.num_train_epochs * args.steps_per_epoch
    scheduler = get_linear_schedule_with_warmup(optimizer, total // 10, total)

    step = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        score = F1()
        for batch in loader:
            batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
            with torch.autocast(device.type, torch.bfloat16):
                outputs = model(**batch)
            outputs.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if not args.fixed or step % args.logging_steps == 0:
                score.update(outputs.logits.detach().argmax(-1), batch["labels"])
            if step % args.logging_steps == 0:
                print(f"epoch {epoch} step {step} loss {outputs.loss.item():.4f} f1 {score.compute():.3f}", flush=True)
        model.save_pretrained(args.output / f"epoch_{epoch}")


if __name__ == "__main__":
    main()
