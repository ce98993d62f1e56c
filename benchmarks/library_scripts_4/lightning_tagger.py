# mypy: ignore-errors
# ruff: noqa: ARG002, D102
"""Tag parts of speech with an Electra encoder and a conditional random field, in Lightning."""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import ElectraConfig, ElectraModel


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--pieces", type=int, default=160, help="of words, in a text")
    parser.add_argument("--tags", type=int, default=12)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="sum over the tags of pairs of neighbours, not one by one")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.pieces, args.layers, args.width, args.vocabulary = 2, 12, 2, 64, 1000
        args.workers = 1
    return args


class TaggedTexts(Dataset):
    """Random pieces of words with random tags; the first piece of each word has the tag."""

    def __init__(self, args):
        self.length = args.max_steps * args.batch_size
        self.pieces = torch.randint(5, args.vocabulary, (2048, args.pieces))
        self.tags = torch.randint(0, args.tags, (2048, args.pieces))
        self.first = torch.rand(2048, args.pieces) < 0.8
        self.first[:, 0] = True

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        number = index % len(self.pieces)
        return self.pieces[number], self.tags[number], self.first[number]


class RandomField(nn.Module):
    """A linear chain over the tags of words. Pieces that do not begin a word are skipped.

    `emissions` has each piece's scores of the tags, and `first` is true for pieces that begin a word.
    """

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.start = nn.Parameter(0.1 * torch.randn(args.tags))
        self.transitions = nn.Parameter(0.1 * torch.randn(args.tags, args.tags))

    def partition(self, emissions, first):
        """Return the logarithm of the sum of scores over all sequences of tags, by a loop over the pieces."""
        score = self.start + emissions[:, 0]
        for emission, is_first in zip(emissions.unbind(1)[1:], first.unbind(1)[1:], strict=True):
            following = torch.logsumexp(score.unsqueeze(2) + self.transitions, dim=1) + emission
            score = torch.where(is_first.unsqueeze(1), following, score)
        return torch.logsumexp(score, dim=1)

    def partition_by_halves(self, emissions, first):
        """Return the same value as `partition`, in few passes; each pass combines all pairs of neighbouring pieces."""
        # the link that changes no score
        nothing = torch.full_like(self.transitions, -1e4).fill_diagonal_(0.0)
        links = self.transitions + emissions[:, 1:].unsqueeze(2)
        links = torch.where(first[:, 1:, None, None], links, nothing)
        while links.shape[1] > 1:
            if links.shape[1] % 2:
                links = torch.cat([links, nothing.expand(len(links), 1, -1, -1)], dim=1)
            links = torch.logsumexp(links[:, 0::2].unsqueeze(4) + links[:, 1::2].unsqueeze(2), dim=3)
        score = (self.start + emissions[:, 0]).unsqueeze(2) + links[:, 0]
        return torch.logsumexp(score.flatten(1), dim=1)

    def score_of(self, emissions, tags, first):
        """Return the score of the given tags."""
        places = torch.arange(tags.shape[1], device=tags.device) * first
        before = places.cummax(dim=1).values[:, :-1]  # the first piece of the word before
        links = self.transitions[tags.gather(1, before), tags[:, 1:]] * first[:, 1:]
        emitted = emissions.gather(2, tags.unsqueeze(2)).squeeze(2) * first
        return self.start[tags[:, 0]] + emitted.sum(1) + links.sum(1)

    def forward(self, emissions, tags, first):
        partition = self.partition_by_halves if self.args.fixed else self.partition
        return (partition(emissions, first) - self.score_of(emissions, tags, first)).mean()


class Tagger(lightning.LightningModule):
    """Electra, a linear layer, and the random field."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        config = ElectraConfig(
            vocab_size=args.vocabulary,
            embedding_size=args.width,
            hidden_size=args.width,
            num_hidden_layers=args.layers,
            num_attention_heads=args.width // 64,
            intermediate_size=4 * args.width,
        )
        self.encoder = ElectraModel(config)
        self.emissions = nn.Linear(args.width, args.tags)
        self.field = RandomField(args)

    def training_step(self, batch, batch_idx):
        pieces, tags, first = batch
        emissions = self.emissions(self.encoder(input_ids=pieces).last_hidden_state)
        loss = self.field(emissions.float(), tags, first)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        fused = self.args.device.startswith("cuda")
        return torch.optim.AdamW(self.parameters(), lr=self.args.lr, weight_decay=0.01, fused=fused)


def main():
    args = parse_args()
    lightning.seed_everything(31)
    on_gpu = args.device.startswith("cuda")
    loader = DataLoader(
        TaggedTexts(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu,
        persistent_workers=True, drop_last=True,
    )  # fmt: skip
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=args.max_steps,
        log_every_n_steps=100,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=args.output,
        logger=CSVLogger(args.output),
        callbacks=[ModelCheckpoint(every_n_train_steps=1000)],
    )
    trainer.fit(Tagger(args), loader)


if __name__ == "__main__":
    main()
