# mypy: ignore-errors
# ruff: noqa: S311
"""Train sentence embeddings against hard negatives, which are searched among the embeddings of all passages."""

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
    parser.add_argument("--batch-size", type=int, default=64, help="pairs of a question and its passage")
    parser.add_argument("--words", type=int, default=128, help="of a question or passage")
    parser.add_argument("--questions", type=int, default=1024)
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--texts", type=int, default=2000, help="that differ, among the passages")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--hardest", type=int, default=20, help="passages, one of which becomes the negative")
    parser.add_argument("--max-steps", type=int, default=4000)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="search on the device")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.words, args.questions, args.passages, args.texts = 2, 8, 16, 500, 20
        args.vocabulary, args.layers, args.width, args.hardest = 200, 2, 64, 4
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


class Passages:
    """Questions and passages as tokens on the device, and the embeddings that an earlier model made of passages."""

    def __init__(self, args, tokenizer, words):
        self.args = args
        generator = random.Random(11)
        texts = [" ".join(generator.choices(words, k=args.words)) for _ in range(args.questions + args.texts)]
        tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=args.words, return_tensors="pt")
        tokens = {name: tokens[name].to(args.device) for name in ("input_ids", "attention_mask")}
        self.questions = {name: table[: args.questions] for name, table in tokens.items()}
        self.texts = {name: table[args.questions :] for name, table in tokens.items()}
        self.embeddings = torch.nn.functional.normalize(torch.randn(args.passages, args.width), dim=1)
        self.embeddings_on_device = self.embeddings.to(args.device)

    def pairs(self, step):
        """Return the features of some questions and of their passages."""
        size = self.args.batch_size
        start = step * size % self.args.questions
        part = slice(start, start + size)
        passages = torch.arange(start, start + size, device=self.args.device) % self.args.texts
        questions = {name: table[part] for name, table in self.questions.items()}
        return questions, {name: table[passages] for name, table in self.texts.items()}

    def negatives(self, questions):
        """Draw a passage for each question's embedding, among the most similar ones; return the passages' features."""
        count = self.args.hardest
        if self.args.fixed:
            hardest = (questions @ self.embeddings_on_device.T).topk(count, dim=1).indices
        else:
            hardest = (questions.cpu() @ self.embeddings.T).topk(count, dim=1).indices
        drawn = torch.randint(count, (len(hardest), 1), device=hardest.device)
        chosen = hardest.gather(1, drawn).squeeze(1).to(self.args.device) % self.args.texts
        return {name: table[chosen] for name, table in self.texts.items()}


def main():
    args = parse_args()
    torch.manual_seed(23)
    args.output.mkdir(parents=True, exist_ok=True)
    folder, words = make_base(args)
    model = SentenceTransformer(folder, device=args.device)
    passages = Passages(args, model.tokenizer, words)
    compute_loss = MultipleNegativesRankingLoss(model)
    on_gpu = args.device.startswith("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=on_gpu)
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, args.max_steps)

    model.train()
    start, total = time.time(), torch.zeros((), device=args.device)
    for step in range(1, args.max_steps + 1):
        questions, positives = passages.pairs(step)
        with torch.autocast("cuda" if on_gpu else "cpu", torch.bfloat16):
            with torch.no_grad():
                embeddings = model(dict(questions))["sentence_embedding"].float()
            negatives = passages.negatives(embeddings)
            loss = compute_loss([questions, positives, negatives], None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total += loss.detach()
        if step % 100 == 0:
            print(f"step {step} loss {total.item() / step:.3f} {time.time() - start:.0f} s", flush=True)
        if step % 2000 == 0:
            model.save(str(args.output / f"step_{step}"))


if __name__ == "__main__":
    main()
