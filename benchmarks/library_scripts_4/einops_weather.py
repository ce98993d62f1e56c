# mypy: ignore-errors
# ruff: noqa: D102
"""Forecast the weather on a global grid with a vision transformer; the fields of some days are in host memory."""

import argparse
import time
from pathlib import Path

import torch
from einops import rearrange
from einops.layers.torch import Rearrange
from torch import nn
from torch.nn import functional


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=24, help="hours that follow each other")
    parser.add_argument("--hours", type=int, default=96)
    parser.add_argument("--lead", type=int, default=6, help="hours from the input to the forecast")
    parser.add_argument("--variables", type=int, default=70)
    parser.add_argument("--grid", type=int, nargs=2, default=(128, 256), help="latitudes and longitudes")
    parser.add_argument("--patch", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--max-steps", type=int, default=5000)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and grid, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="keep the fields on the device")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.variables, args.grid, args.width, args.depth = 2, 4, (16, 32), 64, 2
    return args


class Archive:
    """Hourly fields of all variables, standardized: half a day of random values, repeated."""

    def __init__(self, args, device):
        self.args, self.device = args, device
        self.fields = torch.randn(12, args.variables, *args.grid).repeat(args.hours // 12, 1, 1, 1)
        self.fields_on_device = self.fields.to(device)

    def pair(self, step):
        """Return the fields of some hours, and the fields `lead` hours later."""
        count, lead = self.args.batch_size, self.args.lead
        start = 7 * step % (self.args.hours - count - lead + 1)
        if self.args.fixed:
            fields = self.fields_on_device
            return fields[start : start + count], fields[start + lead : start + lead + count]
        now = self.fields[start : start + count].to(self.device)
        later = self.fields[start + lead : start + lead + count].to(self.device)
        return now, later


class Layer(nn.Module):
    """Attention over all patches, and a feed-forward network."""

    def __init__(self, width):
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.split = Rearrange("b n (three h d) -> three b h n d", three=3, d=64)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.split(self.qkv(self.first_norm(x)))
        x = x + self.out(rearrange(functional.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)"))
        return x + self.feed_forward(self.second_norm(x))


class Forecaster(nn.Module):
    """A vision transformer that predicts the change of each variable in each cell."""

    def __init__(self, args):
        super().__init__()
        p, inside = args.patch, args.variables * args.patch**2
        rows, columns = args.grid[0] // p, args.grid[1] // p
        self.embed = nn.Sequential(
            Rearrange("b v (r p) (c q) -> b (r c) (v p q)", p=p, q=p), nn.Linear(inside, args.width)
        )
        self.position = nn.Parameter(0.02 * torch.randn(rows * columns, args.width))
        self.layers = nn.Sequential(*[Layer(args.width) for _ in range(args.depth)], nn.LayerNorm(args.width))
        self.head = nn.Sequential(
            nn.Linear(args.width, inside), Rearrange("b (r c) (v p q) -> b v (r p) (c q)", r=rows, p=p, q=p)
        )

    def forward(self, fields):
        return self.head(self.layers(self.embed(fields) + self.position))


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(12)
    args.output.mkdir(parents=True, exist_ok=True)
    archive = Archive(args, device)
    model = Forecaster(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=device.type == "cuda")
    latitudes = torch.linspace(-89.3, 89.3, args.grid[0], device=device).deg2rad()
    weights = (latitudes.cos() / latitudes.cos().mean()).view(-1, 1)

    model.train()
    start, total = time.time(), torch.zeros((), device=device)
    for step in range(1, args.max_steps + 1):
        now, later = archive.pair(step)
        with torch.autocast(device.type, torch.bfloat16):
            change = model(now)
        loss = ((change.float() + now - later).square() * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % 100 == 0:
            print(f"step {step} loss {total.item() / step:.4f} {time.time() - start:.1f} s", flush=True)
        if step % 1000 == 0:
            torch.save(model.state_dict(), args.output / "forecaster.pt")


if __name__ == "__main__":
    main()
