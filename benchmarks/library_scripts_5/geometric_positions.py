# mypy: ignore-errors
# ruff: noqa: D102
"""Regress a property of polymers with PyTorch Geometric; a transform adds eigenvectors of each graph's Laplacian."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import BatchNorm, GINEConv, global_mean_pool
from torch_geometric.transforms import AddLaplacianEigenvectorPE


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--polymers", type=int, default=512)
    parser.add_argument("--atoms", type=int, nargs=2, default=(50, 90), help="fewest and most")
    parser.add_argument("--eigenvectors", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--steps-per-epoch", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small graphs and a small model, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="use eigenvectors that were found before training")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.polymers, args.atoms, args.eigenvectors, args.hidden = 4, 16, (12, 20), 4, 32
        args.layers, args.workers = 2, 1
    return args


class Polymers(Dataset):
    """Random graphs: bonds along a chain, and some across."""

    def __init__(self, args):
        self.args = args
        self.transform = AddLaplacianEigenvectorPE(args.eigenvectors, attr_name="position", is_undirected=True)
        generator = torch.Generator().manual_seed(0)
        self.polymers = [self.make(args, generator) for _ in range(args.polymers)]
        self.transformed = [self.transform(polymer) for polymer in self.polymers]

    @staticmethod
    def make(args, generator):
        """Return a random polymer without eigenvectors."""
        atoms = int(torch.randint(*args.atoms, (), generator=generator))
        chain = torch.stack([torch.arange(atoms - 1), torch.arange(1, atoms)])
        across = torch.randint(0, atoms, (2, atoms // 8), generator=generator)
        bonds = torch.cat([chain, across[:, across[0] != across[1]]], dim=1)
        kinds = torch.randint(0, 4, (bonds.shape[1],), generator=generator)
        return Data(
            x=torch.randint(0, 28, (atoms,), generator=generator),
            edge_index=torch.cat([bonds, bonds.flip(0)], dim=1),
            edge_attr=torch.cat([kinds, kinds]),
            y=torch.randn(1, generator=generator),
        )

    def __len__(self):
        return self.args.steps_per_epoch * self.args.batch_size

    def __getitem__(self, index):
        number = index % len(self.polymers)
        return self.transformed[number] if self.args.fixed else self.transform(self.polymers[number])


class Network(nn.Module):
    """GINE layers with residual connections, then the mean over the atoms of each polymer."""

    def __init__(self, args):
        super().__init__()
        hidden = args.hidden
        self.atoms, self.bonds = nn.Embedding(28, hidden), nn.Embedding(4, hidden)
        self.positions = nn.Linear(args.eigenvectors, hidden)
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(args.layers):
            inner = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))
            self.convolutions.append(GINEConv(inner, train_eps=True))
            self.norms.append(BatchNorm(hidden))
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, data, graphs):
        x = self.atoms(data.x) + self.positions(data.position)
        bonds = self.bonds(data.edge_attr)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = x + functional.relu(norm(convolution(x, data.edge_index, bonds)))
        return self.head(global_mean_pool(x, data.batch, size=graphs)).squeeze(-1)


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(2)
    torch.set_float32_matmul_precision("high")
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Polymers(args), batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu,
        drop_last=True, persistent_workers=True,
    )  # fmt: skip
    model = Network(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-5, fused=on_gpu)

    for epoch in range(args.epochs):
        model.train()
        start, total = time.time(), torch.zeros((), device=device)
        for step, data in enumerate(loader, 1):
            graphs = data.to(device, non_blocking=True)
            loss = functional.l1_loss(model(graphs, args.batch_size), graphs.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if step % 100 == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} MAE {total.item() / step:.4f} {rate:.0f} graphs/s", flush=True)
        torch.save(model.state_dict(), args.output / "polymers.pt")


if __name__ == "__main__":
    main()
