# mypy: ignore-errors
# ruff: noqa: D102
"""Classify point clouds with edge convolutions of PyTorch Geometric; scikit-learn finds the nearest neighbours."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import nn
from torch.nn import functional
from torch_geometric.nn import MLP, EdgeConv, global_max_pool


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clouds", type=int, default=24, help="in a batch")
    parser.add_argument("--points", type=int, default=1024)
    parser.add_argument("--neighbours", type=int, default=16)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--max-steps", type=int, default=4000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few points, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="find the neighbours on the device")
    args = parser.parse_args()
    if args.tiny:
        args.clouds, args.points, args.neighbours, args.width = 2, 64, 4, 16
    return args


class Alignment(nn.Module):
    """Rotate and scale each cloud with a matrix that a small network predicts, as in PointNet."""

    def __init__(self, args):
        super().__init__()
        self.clouds = args.clouds
        self.points = MLP([3, args.width, 4 * args.width])
        self.matrix = nn.Linear(4 * args.width, 9)
        nn.init.normal_(self.matrix.weight, std=1e-3)
        nn.init.zeros_(self.matrix.bias)

    def forward(self, positions, cloud):
        state = global_max_pool(self.points(positions), cloud, self.clouds)
        matrices = self.matrix(state).view(-1, 3, 3) + torch.eye(3, device=positions.device)
        return torch.bmm(positions.view(len(matrices), -1, 3), matrices).view(-1, 3)


class PointNetwork(nn.Module):
    """Edge convolutions over the nearest neighbours of the aligned points."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.alignment = Alignment(args)
        self.first = EdgeConv(MLP([6, args.width, args.width]), aggr="max")
        self.second = EdgeConv(MLP([2 * args.width, args.width, 2 * args.width]), aggr="max")
        self.head = MLP([3 * args.width, 4 * args.width, args.classes], dropout=0.5)

    def neighbours(self, positions):
        """Return edges from the nearest neighbours of each point to the point."""
        count, size = self.args.neighbours, self.args.points
        clouds = positions.detach().view(-1, size, 3)
        if self.args.fixed:
            nearest = torch.cdist(clouds, clouds).topk(count, largest=False).indices
        else:
            found = []
            for points in clouds.cpu().numpy():
                tree = NearestNeighbors(n_neighbors=count, algorithm="kd_tree").fit(points)
                found.append(tree.kneighbors(points, return_distance=False))
            nearest = torch.from_numpy(np.stack(found)).to(positions.device)
        # number of each cloud's first point in the batch
        first = torch.arange(len(clouds), device=positions.device).mul(size).view(-1, 1, 1)
        target = torch.arange(len(positions), device=positions.device).repeat_interleave(count)
        return torch.stack([(nearest + first).flatten(), target])

    def forward(self, positions, cloud):
        positions = self.alignment(positions, cloud)
        edges = self.neighbours(positions)
        near = self.first(positions, edges)
        far = self.second(near, edges)
        return self.head(global_max_pool(torch.cat([near, far], dim=-1), cloud, self.args.clouds))


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    args.output.mkdir(parents=True, exist_ok=True)
    shapes = torch.randn(256, args.points, 3, device=device)
    shapes = shapes / shapes.norm(dim=-1, keepdim=True) * torch.rand(256, 1, 3, device=device)
    labels = torch.randint(0, args.classes, (256,), device=device)
    cloud = torch.arange(args.clouds, device=device).repeat_interleave(args.points)

    model = PointNetwork(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=device.type == "cuda")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000, gamma=0.5)
    model.train()
    start = time.time()
    for step in range(1, args.max_steps + 1):
        chosen = torch.randint(0, len(shapes), (args.clouds,), device=device)
        positions = shapes[chosen] + 0.01 * torch.randn(args.clouds, args.points, 3, device=device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(positions.view(-1, 3), cloud), labels[chosen])
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - start:.1f} s", flush=True)
        if step % 1000 == 0:
            torch.save(model.state_dict(), args.output / "points.pt")


if __name__ == "__main__":
    main()
