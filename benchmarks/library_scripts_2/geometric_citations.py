# mypy: ignore-errors
# ruff: noqa: D102
"""Classify the papers of a citation graph with GraphSAGE; the whole graph is on the device."""

import argparse
import itertools
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--papers", type=int, default=169_343)
    parser.add_argument("--citations", type=int, default=1_166_243)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--eval-steps", type=int, default=500)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small graph, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.papers, args.citations, args.hidden = 500, 2000, 16
    return args


class Sage(nn.Module):
    """SAGE layers with batch normalization and dropout."""

    def __init__(self, args):
        super().__init__()
        sizes = [args.features, *[args.hidden] * (args.layers - 1), args.classes]
        self.convolutions = nn.ModuleList(SAGEConv(a, b) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:-1])
        self.dropout = args.dropout

    def forward(self, x, edge_index):
        for convolution, norm in zip(self.convolutions, self.norms, strict=False):
            x = functional.relu(norm(convolution(x, edge_index)))
            x = functional.dropout(x, self.dropout, self.training)
        return self.convolutions[-1](x, edge_index)


@torch.no_grad()
def evaluate(model, x, edge_index, y, papers):
    model.eval()
    return (model(x, edge_index)[papers].argmax(-1) == y[papers]).float().mean().item()


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    x = torch.randn(args.papers, args.features).to(device)
    y = torch.randint(0, args.classes, (args.papers,)).to(device)
    citing = torch.randint(0, args.papers, (args.citations,))
    cited = torch.rand(args.citations).pow(2).mul(args.papers).long().clamp(max=args.papers - 1)
    edge_index = torch.stack([torch.cat([citing, cited]), torch.cat([cited, citing])]).to(device)
    order = torch.randperm(args.papers).to(device)
    train, validation = order[: args.papers // 2], order[args.papers // 2 :]

    model = Sage(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=device.type == "cuda")
    start = time.time()
    for epoch in range(1, args.epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, edge_index)[train], y[train])
        loss.backward()
        optimizer.step()
        if epoch % 100 == 0:
            print(f"epoch {epoch:04d} loss {loss.item():.4f} {time.time() - start:.1f} s", flush=True)
        if epoch % args.eval_steps == 0:
            print(f"validation {evaluate(model, x, edge_index, y, validation):.4f}", flush=True)
            torch.save(model.state_dict(), args.output / "sage.pt")


if __name__ == "__main__":
    main()
