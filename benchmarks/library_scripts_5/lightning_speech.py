# mypy: ignore-errors
# ruff: noqa: ARG002, D102
"""Train a text-to-speech model with Lightning; the best monotonic alignment of text and sound is searched in numpy."""

import argparse
from pathlib import Path

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--phonemes", type=int, default=96, help="in a clip")
    parser.add_argument("--frames", type=int, default=448, help="of a clip")
    parser.add_argument("--bands", type=int, default=80, help="of a mel spectrogram")
    parser.add_argument("--symbols", type=int, default=180)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--encoder-layers", type=int, default=4)
    parser.add_argument("--decoder-layers", type=int, default=12)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--max-steps", type=int, default=4000)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and short clips, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="give each phoneme the same number of frames")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.phonemes, args.frames, args.width, args.workers = 2, 8, 32, 64, 1
        args.encoder_layers, args.decoder_layers = 1, 2
    return args


class Clips(Dataset):
    """Random phonemes and random mel spectrograms of fixed lengths."""

    def __init__(self, args):
        self.length = args.max_steps * args.batch_size
        self.phonemes = torch.randint(0, args.symbols, (512, args.phonemes))
        self.spectrograms = torch.randn(512, args.frames, args.bands)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.phonemes[index % 512], self.spectrograms[index % 512]


def search_path(value):
    """Return, as zeros and ones, each clip's monotonic path of the largest sum; shapes (clips, phonemes, frames)."""
    batch, phonemes, frames = value.shape
    stays = np.zeros(value.shape, dtype=bool)
    best = np.zeros((batch, phonemes), dtype=np.float32)
    numbers = np.arange(phonemes).reshape(1, -1)
    for frame in range(frames):
        before = np.pad(best, [[0, 0], [1, 0]], constant_values=-1e9)[:, :-1]
        stay = best >= before
        stays[:, :, frame] = stay
        best = np.where(numbers <= frame, np.where(stay, best, before) + value[:, :, frame], -1e9)
    path = np.zeros(value.shape, dtype=np.float32)
    clips, phoneme = np.arange(batch), np.full(batch, phonemes - 1)
    for frame in reversed(range(frames)):
        path[clips, phoneme, frame] = 1
        phoneme = np.maximum(phoneme + stays[clips, phoneme, frame] - 1, 0)
    return path


def transformer(width, layers):
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)


class Speech(lightning.LightningModule):
    """A text encoder, an alignment, and a decoder that is trained by flow matching."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.symbols = nn.Embedding(args.symbols, args.width)
        self.text_positions = nn.Parameter(0.02 * torch.randn(args.phonemes, args.width))
        self.encoder = transformer(args.width, args.encoder_layers)
        self.mean, self.duration = nn.Linear(args.width, args.bands), nn.Linear(args.width, 1)
        self.enter = nn.Linear(2 * args.bands, args.width)
        self.time = nn.Sequential(nn.Linear(1, args.width), nn.SiLU(), nn.Linear(args.width, args.width))
        self.frame_positions = nn.Parameter(0.02 * torch.randn(args.frames, args.width))
        self.decoder = transformer(args.width, args.decoder_layers)
        self.leave = nn.Linear(args.width, args.bands)

    @torch.no_grad()
    def align(self, mean, spectrogram):
        """Return a matrix of zeros and ones for each clip: the phoneme of each frame."""
        if self.args.fixed:
            phoneme = torch.arange(self.args.frames, device=mean.device) * self.args.phonemes // self.args.frames
            path = functional.one_hot(phoneme, self.args.phonemes).to(mean.dtype).T
            return path.expand(len(mean), -1, -1)
        value = mean @ spectrogram.transpose(1, 2) - 0.5 * mean.square().sum(2, keepdim=True)
        return torch.from_numpy(search_path(value.float().cpu().numpy())).to(mean.device)

    def training_step(self, batch, batch_idx):
        phonemes, spectrogram = batch
        states = self.encoder(self.symbols(phonemes) + self.text_positions)
        mean = self.mean(states).float()
        path = self.align(mean, spectrogram)
        prior = path.transpose(1, 2) @ mean
        time = torch.rand(len(spectrogram), 1, 1, device=self.device)
        noise = torch.randn_like(spectrogram)
        mixed = torch.lerp(noise, spectrogram, time)
        decoded = self.decoder(self.enter(torch.cat([mixed, prior], dim=2)) + self.time(time) + self.frame_positions)
        flow_loss = functional.mse_loss(self.leave(decoded).float(), spectrogram - noise)
        duration_loss = functional.mse_loss(self.duration(states).squeeze(2).float(), path.sum(2).log1p())
        loss = flow_loss + 0.5 * functional.mse_loss(prior.float(), spectrogram) + duration_loss
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.args.lr, fused=self.args.device.startswith("cuda"))


def main():
    args = parse_args()
    lightning.seed_everything(3)
    on_gpu = args.device.startswith("cuda")
    loader = DataLoader(
        Clips(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
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
        callbacks=[ModelCheckpoint(every_n_train_steps=2000)],
    )
    trainer.fit(Speech(args), loader)


if __name__ == "__main__":
    main()
