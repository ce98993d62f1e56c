# mypy: ignore-errors
# ruff: noqa: D102, PLW2901
"""Train a detector without anchors on a ResNet of torchvision; the loss selects the positive cells of each image."""

import argparse
import time
from pathlib import Path

import torch
import torchvision
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

STRIDE = 16


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image-size", type=int, default=448)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--objects", type=int, default=12, help="in each image")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small images, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="weights of 0 and 1 instead of selected cells")
    args = parser.parse_args()
    if args.tiny:
        args.image_size, args.objects, args.batch_size, args.workers = 96, 3, 2, 1
    return args


class Scenes(Dataset):
    """Images of random pixels with random boxes."""

    def __init__(self, args):
        self.length = args.steps_per_epoch * args.batch_size
        self.images = torch.randint(0, 256, (96, 3, args.image_size, args.image_size), dtype=torch.uint8)
        corners = torch.rand(1024, args.objects, 2) * args.image_size * 0.7
        sizes = (0.1 + 0.2 * torch.rand(1024, args.objects, 2)) * args.image_size
        self.boxes = torch.cat([corners, corners + sizes], dim=-1)
        self.labels = torch.randint(0, args.classes, (1024, args.objects))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.images[index % 96], self.boxes[index % 1024], self.labels[index % 1024]


class Detector(nn.Module):
    """A ResNet with two convolutional heads: class, and distances to the four sides with centredness."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.body = torchvision.models.resnet50(weights=None)
        self.body.layer4 = self.body.fc = nn.Identity()
        self.neck = nn.Sequential(nn.Conv2d(1024, 256, 1), nn.ReLU(), nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())
        self.class_head = nn.Conv2d(256, args.classes, 3, padding=1)
        self.box_head = nn.Conv2d(256, 5, 3, padding=1)

    def forward(self, images):
        body = self.body
        x = body.maxpool(body.relu(body.bn1(body.conv1(images))))
        x = self.neck(body.layer3(body.layer2(body.layer1(x))))
        scores = self.class_head(x).flatten(2).transpose(1, 2).float()
        sides = self.box_head(x).flatten(2).transpose(1, 2).float()
        return scores, sides[..., :4].exp().clamp(max=1e3), sides[..., 4]


def assign(centers, boxes):
    """Return each cell's smallest box (distances to its sides, and its index), and whether the cell is in a box.

    `centers` is (cells, 2), and `boxes` is (objects, 4) with two corners each, or has one more dimension for images.
    """
    left_top = centers[:, None] - boxes[..., None, :, :2]
    right_bottom = boxes[..., None, :, 2:] - centers[:, None]
    sides = torch.cat([left_top, right_bottom], dim=-1)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(-1)[..., None, :].expand(sides.shape[:-1])
    areas = areas.masked_fill(sides.amin(-1) <= 0, float("inf"))
    smallest, index = areas.min(-1)
    sides = sides.gather(-2, index[..., None, None].expand(*index.shape, 1, 4)).squeeze(-2)
    return sides, index, smallest.isfinite()


def overlap_loss(predicted, target):
    """Return 1 - IoU of boxes that are given as distances from one point."""
    smaller, larger = torch.minimum(predicted, target), torch.maximum(predicted, target)
    shared = (smaller[..., 0] + smaller[..., 2]) * (smaller[..., 1] + smaller[..., 3])
    joint = (larger[..., 0] + larger[..., 2]) * (larger[..., 1] + larger[..., 3])
    return 1 - shared / joint.clamp(min=1e-6)


def centredness(sides):
    pairs = torch.stack([sides[..., [0, 2]], sides[..., [1, 3]]], dim=-2).clamp(min=1e-3)
    return (pairs.amin(-1) / pairs.amax(-1)).prod(-1).sqrt()


def loss_by_image(outputs, centers, boxes, labels):
    """Return the loss over cells with the given `centers`; a mask selects each image's cells that are in a box."""
    losses = []
    for scores, sides, centres, image_boxes, image_labels in zip(*outputs, boxes, labels, strict=True):
        target, index, positive = assign(centers, image_boxes)
        if not positive.any():
            losses.append(functional.softplus(scores).mean())
            continue
        wanted = torch.zeros_like(scores)
        wanted[positive] = functional.one_hot(image_labels[index[positive]], scores.shape[1]).float()
        class_loss = functional.binary_cross_entropy_with_logits(scores, wanted)
        target = target[positive]
        box_loss = overlap_loss(sides[positive], target).mean()
        centre_loss = functional.binary_cross_entropy_with_logits(centres[positive], centredness(target))
        losses.append(class_loss + box_loss + centre_loss)
    return torch.stack(losses).mean()


def loss_of_batch(outputs, centers, boxes, labels):
    """Return the loss of `loss_by_image` for all images at once; cells without an object have the weight 0."""
    scores, sides, centres = outputs
    target, index, positive = assign(centers, boxes)
    weight = positive.float() / positive.sum(1, keepdim=True).clamp(min=1)
    wanted = torch.zeros_like(scores).scatter_(2, labels.gather(1, index)[..., None], positive[..., None].float())
    class_loss = functional.binary_cross_entropy_with_logits(scores, wanted)
    target = target.clamp(min=0)
    box_loss = (overlap_loss(sides, target) * weight).sum(1).mean()
    centre_loss = functional.binary_cross_entropy_with_logits(centres, centredness(target), reduction="none")
    return class_loss + box_loss + (centre_loss * weight).sum(1).mean()


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Scenes(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    model = Detector(args).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=on_gpu)
    cells = torch.arange(args.image_size // STRIDE, device=device).add(0.5).mul(STRIDE)
    centers = torch.stack(torch.meshgrid(cells, cells, indexing="xy"), dim=-1).view(-1, 2)

    for epoch in range(args.epochs):
        model.train()
        start = time.time()
        for step, (images, boxes, labels) in enumerate(loader, 1):
            images = images.to(device, non_blocking=True).float().div(255)
            images = images.contiguous(memory_format=torch.channels_last)
            boxes, labels = boxes.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                outputs = model(images)
            compute_loss = loss_of_batch if args.fixed else loss_by_image
            loss = compute_loss(outputs, centers, boxes, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} {rate:.0f} img/s", flush=True)
        torch.save(model.state_dict(), args.output / "detector.pt")


if __name__ == "__main__":
    main()
