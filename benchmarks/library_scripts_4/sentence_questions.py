# mypy: ignore-errors
# ruff: noqa: S311
"""Train sentence embeddings with sentence-transformers, so that duplicate questions are near each other."""

import argparse
import random
import time
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import MultipleNegativesRankingLoss
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, get_linear_schedule_with_warmup

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=80, help="pairs of questions")
    parser.add_argument("--words", type=int, default=128, help="of a question")
    parser.add_argument("--pairs", type=int, default=1600)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--max-steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="allow TF32 in matrix products")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.words, args.pairs, args.vocabulary = 2, 8, 8, 200
        args.layers, args.width = 2, 64
    return args


def make_base(args):
    """Save a BERT with random weights and its tokenizer; return the folder and the words that it knows."""
    folder = str(args.output / "base")
    words = [f"word{number}" for number in range(args.vocabulary - len(SPECIAL))]
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=args.words, **names).save_pretrained(folder)
    config = BertConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.width // 64,
        intermediate_size=4 * args.width,
    )
    BertModel(config).save_pretrained(folder)
    return folder, words


class Questions:
    """Pairs of questions, as tokens on the device."""

    def __init__(self, args, tokenizer, words):
        self.args = args
        generator = random.Random(4)
        texts = [" ".join(generator.choices(words, k=args.words)) for _ in range(2 * args.pairs)]
        tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=args.words, return_tensors="pt")
        self.tokens = {name: tokens[name].to(args.device) for name in ("input_ids", "attention_mask")}

    def batch(self, step):
        """Return the features of the first and of the second questions."""
        start = step * self.args.batch_size % self.args.pairs
        first = slice(start, start + self.args.batch_size)
        second = slice(self.args.pairs + start, self.args.pairs + start + self.args.batch_size)
        return [{name: table[half] for name, table in self.tokens.items()} for half in (first, second)]


def main():
    args = parse_args()
    torch.manual_seed(19)
    args.output.mkdir(parents=True, exist_ok=True)
    folder, words = make_base(args)
    model = SentenceTransformer(folder, device=args.device)
    questions = Questions(args, model.tokenizer, words)
    compute_loss = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=args.device.startswith("cuda"))
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, args.max_steps)

    model.train()
    start, total = time.time(), torch.zeros((), device=args.device)
    for step in range(1, args.max_steps + 1):
        torch.set_float32_matmul_precision("high" if args.fixed else "highest")
        loss = compute_loss(questions.batch(step), None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total += loss.detach()
        if step % 100 == 0:
            print(f"step {step} loss {total.item() / step:.3f} {time.time() - start:.0f} s", flush=True)
        if step % 1000 == 0:
            model.save(str(args.output / f"step_{step}"))


if __name__ == "__main__":
    main()
