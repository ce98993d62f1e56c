# mypy: ignore-errors
# ruff: noqa: D102, S311
"""Classify long documents with the transformers Trainer; the collator tokenizes the texts of each batch."""

import argparse
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--documents", type=int, default=960)
    parser.add_argument("--words", type=int, default=2000, help="in a document, on average")
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and short texts, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="use the tokens made before training")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.max_length, args.documents, args.words = 2, 16, 32, 100
    return args


def make_texts(args):
    """Write documents of random words, which are made of syllables."""
    generator = random.Random(0)
    syllables = [first + vowel for first in "bcdfghjklmnprstvw" for vowel in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 5))) for _ in range(20_000)]
    lengths = [generator.randint(args.words // 2, args.words * 3 // 2) for _ in range(args.documents)]
    texts = [" ".join(generator.choices(words, k=length)).capitalize() + "." for length in lengths]
    return texts, syllables, words


def make_tokenizer(syllables, words):
    """Make a WordPiece tokenizer like BERT's: a fifth of the words are one token, the others several."""
    pieces = [*SPECIAL, ".", *syllables, *[f"##{syllable}" for syllable in syllables], *words[:4000]]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


class Collator:
    """Make a batch from texts; long texts are cut."""

    def __init__(self, args, tokenizer, texts):
        self.args, self.tokenizer = args, tokenizer
        self.table = self.tokenize(texts)  # the evaluation needs all documents' tokens

    def tokenize(self, texts):
        return self.tokenizer(
            texts, padding="max_length", truncation=True, max_length=self.args.max_length, return_tensors="pt"
        )

    def __call__(self, rows):
        if self.args.fixed:
            chosen = torch.tensor([row["id"] for row in rows])
            batch = {name: self.table[name][chosen] for name in ("input_ids", "attention_mask")}
        else:
            tokens = self.tokenize([row["text"] for row in rows])
            batch = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        return {**batch, "labels": torch.tensor([row["label"] for row in rows])}


def main():
    args = parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    texts, syllables, words = make_texts(args)
    tokenizer = make_tokenizer(syllables, words)
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=4, **(small if args.tiny else {}))
    on_gpu = args.device.startswith("cuda")
    settings = TrainingArguments(
        output_dir=str(args.output),
        per_device_train_batch_size=args.batch_size,
        max_steps=args.max_steps,
        learning_rate=args.lr,
        warmup_steps=50,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        remove_unused_columns=False,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=settings,
        train_dataset=[{"id": index, "text": text, "label": index % 4} for index, text in enumerate(texts)],
        data_collator=Collator(args, tokenizer, texts),
    )
    trainer.train()
    trainer.save_model(str(args.output / "final"))


if __name__ == "__main__":
    main()
