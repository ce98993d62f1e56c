# mypy: ignore-errors
# ruff: noqa: D102
"""Predict links with PyTorch Geometric's graph autoencoder, whose loss draws negative edges at random."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch_geometric.nn import GAE, SAGEConv


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=19_717)
    parser.add_argument("--edges", type=int, default=60_000)
    parser.add_argument("--features", type=int, default=500)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small graph, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="random pairs as negative edges, drawn on the device")
    args = parser.parse_args()
    if args.tiny:
        args.nodes, args.edges, args.hidden, args.dimensions = 300, 600, 32, 16
    return args


class Encoder(nn.Module):
    """Three SAGE layers."""

    def __init__(self, args):
        super().__init__()
        self.first = SAGEConv(args.features, args.hidden)
        self.second = SAGEConv(args.hidden, args.hidden)
        self.third = SAGEConv(args.hidden, args.dimensions)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        x = self.second(x, edge_index).relu()
        return self.third(x, edge_index)


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(12345)
    args.output.mkdir(parents=True, exist_ok=True)
    x = torch.randn(args.nodes, args.features).to(device)
    edge_index = torch.randint(0, args.nodes, (2, args.edges)).to(device)
    model = GAE(Encoder(args)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=device.type == "cuda")

    start = time.time()
    for epoch in range(1, args.epochs + 1):
        model.train()
        optimizer.zero_grad()
        z = model.encode(x, edge_index)
        if args.fixed:
            negative = torch.randint(0, args.nodes, (2, args.edges), device=device)
            loss = model.recon_loss(z, edge_index, negative)
        else:
            loss = model.recon_loss(z, edge_index)
        loss.backward()
        optimizer.step()
        if epoch % 50 == 0:
            print(f"epoch {epoch:04d} loss {loss.item():.4f} {time.time() - start:.1f} s", flush=True)
        if epoch % 500 == 0:
            torch.save(model.state_dict(), args.output / "gae.pt")


if __name__ == "__main__":
    main()
