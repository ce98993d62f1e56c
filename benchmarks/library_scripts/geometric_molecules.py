# mypy: ignore-errors
# ruff: noqa: D102, PLW2901, S311
"""Regress a property of molecules with a graph network of PyTorch Geometric."""

import argparse
import random
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import BatchNorm, GINEConv, global_add_pool


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--molecules", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--steps-per-epoch", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="collate in six workers")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.hidden, args.molecules = 64, 16, 256
    return args


def make_molecules(count):
    """Make graphs like those of QM9 and ZINC: 10 to 38 atoms, bonds along a chain and some across."""
    random.seed(0)
    molecules = []
    for _ in range(count):
        atoms = random.randint(10, 38)
        bonds = [(i, i + 1) for i in range(atoms - 1)]
        bonds += [(random.randrange(atoms), random.randrange(atoms)) for _ in range(atoms // 6)]
        edges = torch.tensor(bonds + [(b, a) for a, b in bonds]).t().contiguous()
        molecules.append(
            Data(
                x=torch.randint(0, 28, (atoms,)),
                edge_index=edges,
                edge_attr=torch.randint(0, 4, (edges.shape[1],)),
                pos=torch.randn(atoms, 3),
                y=torch.randn(1),
            )
        )
    return molecules


class Net(nn.Module):
    """GINE layers with residual connections, then a sum over atoms, then a perceptron."""

    def __init__(self, hidden, layers):
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(28, hidden), nn.Embedding(4, hidden)
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(layers):
            inner = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))
            self.convolutions.append(GINEConv(inner, train_eps=True))
            self.norms.append(BatchNorm(hidden))
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, data, graphs):
        x, bonds = self.atoms(data.x), self.bonds(data.edge_attr)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = x + functional.relu(norm(convolution(x, data.edge_index, bonds)))
        return self.head(global_add_pool(x, data.batch, size=graphs)).squeeze(-1)


def make_loader(molecules, args):
    sampler = torch.utils.data.RandomSampler(
        molecules, replacement=True, num_samples=args.steps_per_epoch * args.batch_size
    )
    workers = 6 if args.fixed else 0
    on_gpu = args.device.startswith("cuda")
    return DataLoader(
        molecules, batch_size=args.batch_size, sampler=sampler, num_workers=workers, pin_memory=on_gpu, drop_last=True
    )


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    molecules = make_molecules(args.molecules)
    model = Net(args.hidden, args.layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=device.type == "cuda")
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=5)

    for epoch in range(args.epochs):
        model.train()
        total, start = torch.zeros((), device=device), time.time()
        for data in make_loader(molecules, args):
            data = data.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = functional.l1_loss(model(data, args.batch_size), data.y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        mean = total.item() / args.steps_per_epoch
        scheduler.step(mean)
        print(f"epoch {epoch:03d} MAE {mean:.4f} {time.time() - start:.1f} s", flush=True)
        if epoch % 20 == 19:
            torch.save(model.state_dict(), args.output / "model.pt")


if __name__ == "__main__":
    main()
