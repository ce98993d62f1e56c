# mypy: ignore-errors
# ruff: noqa: D102, S311
"""Classify bird song of any length with a transformer; the preparation of spectrograms is compiled for each length."""

import argparse
import random
import time
from pathlib import Path

import torch
import torch._dynamo
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertModel, get_cosine_schedule_with_warmup

torch._dynamo.config.recompile_limit = 10_000  # noqa: SLF001 # by default, compilation stops after 8 shapes
torch._dynamo.config.accumulated_recompile_limit = 10_000  # noqa: SLF001


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--longest", type=int, default=3000, help="frames")
    parser.add_argument("--shortest", type=int, default=400, help="frames")
    parser.add_argument("--bands", type=int, default=128)
    parser.add_argument("--species", type=int, default=264)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="pad each batch to the longest recording of all")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.bands, args.layers, args.width = 2, 32, 1, 64
    return args


class Recordings:
    """Random spectrograms in batches; the lengths differ between batches only."""

    def __init__(self, args, device):
        self.args = args
        self.frames = torch.rand(args.batch_size, args.bands, args.longest + 1000, device=device)
        self.species = torch.randint(0, args.species, (256, args.batch_size), device=device)

    def batch(self, step):
        """Return spectrograms of one length, and their species."""
        length = self.args.longest if self.args.fixed else random.randint(self.args.shortest, self.args.longest)
        start = 4 * random.randint(0, 249)
        return self.frames[:, :, start : start + length], self.species[step % 256]


@torch.compile(dynamic=False)
def prepare(spectrograms, gain, noise):
    """Amplify the spectrograms, add noise, and return their scaled logarithms."""
    loud = torch.log1p(spectrograms * gain * 100.0 + noise)
    return ((loud - 3.4) / 1.1).clamp(-4.0, 4.0)


class BirdNetwork(nn.Module):
    """Convolutions that shorten the spectrogram to a tenth, a transformer, and the mean over time."""

    def __init__(self, args):
        super().__init__()
        self.shorten = nn.Conv1d(args.bands, args.width, 10, stride=10)
        config = BertConfig(
            vocab_size=16, hidden_size=args.width, num_hidden_layers=args.layers, num_attention_heads=args.width // 64,
            intermediate_size=4 * args.width, max_position_embeddings=args.longest // 10 + 100,
        )  # fmt: skip
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(args.width, args.species)

    def forward(self, spectrograms):
        states = functional.gelu(self.shorten(spectrograms)).transpose(1, 2)
        states = self.encoder(inputs_embeds=states).last_hidden_state
        return self.head(states.mean(1))


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    recordings = Recordings(args, device)
    model = BirdNetwork(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=device.type == "cuda")
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, args.max_steps)

    model.train()
    start = time.time()
    for step in range(1, args.max_steps + 1):
        spectrograms, species = recordings.batch(step)
        gain = torch.rand(args.batch_size, 1, 1, device=device) + 0.5
        noise = 0.01 * torch.rand(args.batch_size, args.bands, 1, device=device)
        with torch.no_grad():
            features = prepare(spectrograms, gain, noise)
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(model(features), species, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} {(time.time() - start) / step:.3f} s", flush=True)
        if step % 500 == 0:
            torch.save(model.state_dict(), args.output / "birds.pt")


if __name__ == "__main__":
    main()
