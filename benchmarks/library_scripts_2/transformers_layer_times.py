# mypy: ignore-errors
# ruff: noqa: D102, PLW2901
"""Train a vision transformer of the transformers library; hooks measure the time of each layer's forward pass."""

import argparse
import time
from collections import defaultdict
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and small images, to try it on a CPU")
    parser.add_argument("--fixed", action="store_true", help="do not measure layers")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.image_size, args.workers = 2, 32, 1
    return args


class Food(Dataset):
    """Decoded images of random pixels, kept as bytes."""

    def __init__(self, args):
        self.length, self.classes = args.steps_per_epoch * args.batch_size, args.classes
        self.images = torch.randint(0, 256, (128, 3, args.image_size, args.image_size), dtype=torch.uint8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.images[index % 128], index % self.classes


class LayerTimes:
    """Sums of each layer's forward times, which hooks before and after the layer measure."""

    def __init__(self, args, model):
        self.args, self.on_gpu = args, args.device.startswith("cuda")
        self.starts, self.totals = {}, defaultdict(float)
        for name, module in model.named_modules():
            if not list(module.children()):
                module.register_forward_pre_hook(self.make_start(name))
                module.register_forward_hook(self.make_end(name))

    def now(self):
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def make_start(self, name):
        def start(module, inputs):  # noqa: ARG001
            if not self.args.fixed:
                self.starts[name] = self.now()

        return start

    def make_end(self, name):
        def end(module, inputs, output):  # noqa: ARG001
            if not self.args.fixed:
                self.totals[name] += self.now() - self.starts[name]

        return end

    def slowest(self, count=3):
        return sorted(self.totals.items(), key=lambda item: -item[1])[:count]


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = ViTConfig(image_size=args.image_size, num_labels=args.classes, **(small if args.tiny else {}))
    model = ViTForImageClassification(config).to(device)
    loader = DataLoader(
        Food(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=on_gpu)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, args.epochs * args.steps_per_epoch)
    times = LayerTimes(args, model)

    for epoch in range(args.epochs):
        model.train()
        for step, (images, labels) in enumerate(loader, 1):
            images = images.to(device, non_blocking=True).float().div(127.5).sub(1)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(pixel_values=images, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if step % 50 == 0:
                slowest = ", ".join(f"{name} {total:.2f} s" for name, total in times.slowest())
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} slowest: {slowest}", flush=True)
        model.save_pretrained(args.output / f"epoch_{epoch}")


if __name__ == "__main__":
    main()
