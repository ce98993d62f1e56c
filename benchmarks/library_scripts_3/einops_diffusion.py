# mypy: ignore-errors
# ruff: noqa: D102, PLW2901
"""Train a diffusion transformer on latent images in a plain loop, with einops for the patches."""

import argparse
import time
from pathlib import Path

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

TIMES = 1000


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="of the latent images")
    parser.add_argument("--patch", type=int, default=2)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.size, args.width, args.depth, args.workers = 2, 8, 64, 2, 1
    return args


class Latents(Dataset):
    """Random latent images, in place of those that an autoencoder made before."""

    def __init__(self, args):
        self.length, self.classes = args.steps_per_epoch * args.batch_size, args.classes
        self.latents = torch.randn(2048, 4, args.size, args.size)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.latents[index % 2048], index % self.classes


class Block(nn.Module):
    """Attention and a feed-forward layer, each shifted, scaled and gated by the condition."""

    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.first_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.second_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.condition = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.condition.weight)
        nn.init.zeros_(self.condition.bias)

    def forward(self, x, condition):
        # shift, scale and gate of the attention, and then of the feed-forward layer
        parts = rearrange(self.condition(condition), "b (n w) -> n b 1 w", n=6)
        normed = torch.addcmul(parts[0], self.first_norm(x), 1 + parts[1])
        q, k, v = rearrange(self.qkv(normed), "b t (n h d) -> n b h t d", n=3, h=self.heads)
        attended = rearrange(functional.scaled_dot_product_attention(q, k, v), "b h t d -> b t (h d)")
        x = torch.addcmul(x, parts[2], self.out(attended))
        normed = torch.addcmul(parts[3], self.second_norm(x), 1 + parts[4])
        return torch.addcmul(x, parts[5], self.feed_forward(normed))


class DiffusionTransformer(nn.Module):
    """Predict the noise in latent images from their patches, the time and the class."""

    def __init__(self, args):
        super().__init__()
        self.patch, self.cells = args.patch, args.size // args.patch
        self.patches = nn.Linear(4 * args.patch**2, args.width)
        self.positions = nn.Parameter(0.02 * torch.randn(self.cells**2, args.width))
        self.times = nn.Embedding(TIMES, args.width)
        self.classes = nn.Embedding(args.classes, args.width)
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.depth))
        self.norm = nn.LayerNorm(args.width)
        self.out = nn.Linear(args.width, 4 * args.patch**2)

    def forward(self, latents, times, classes):
        p = self.patch
        x = rearrange(latents, "b c (h p) (w q) -> b (h w) (p q c)", p=p, q=p)
        x = self.patches(x) + self.positions
        condition = functional.silu(self.times(times) + self.classes(classes))
        for block in self.blocks:
            x = block(x, condition)
        return rearrange(self.out(self.norm(x)), "b (h w) (p q c) -> b c (h p) (w q)", h=self.cells, p=p, q=p)


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Latents(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    model = DiffusionTransformer(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0, fused=on_gpu)
    signal = torch.cumprod(1 - torch.linspace(1e-4, 0.02, TIMES, device=device), dim=0)

    for epoch in range(args.epochs):
        model.train()
        start, total = time.time(), torch.zeros((), device=device)
        for step, (latents, classes) in enumerate(loader, 1):
            latents, classes = latents.to(device, non_blocking=True), classes.to(device, non_blocking=True)
            times = torch.randint(0, TIMES, (len(latents),), device=device)
            share = signal[times].view(-1, 1, 1, 1)
            noise = torch.randn_like(latents)
            noisy = share.sqrt() * latents + (1 - share).sqrt() * noise
            with torch.autocast(device.type, torch.bfloat16):
                predicted = model(noisy, times, classes)
            loss = functional.mse_loss(predicted.float(), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if step % 100 == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {total.item() / step:.4f} {rate:.0f} images/s", flush=True)
        torch.save(model.state_dict(), args.output / "diffusion.pt")


if __name__ == "__main__":
    main()
