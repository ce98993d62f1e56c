# mypy: ignore-errors
# ruff: noqa: D102, PLW2901
"""Train an image encoder of timm and a text encoder of transformers to find each image's caption, as CLIP does."""

import argparse
import math
import time
from pathlib import Path

import timm
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from transformers import RobertaConfig, RobertaModel


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image-model", default="vit_small_patch16_224")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--image-depth", type=int, default=12)
    parser.add_argument("--text-width", type=int, default=512)
    parser.add_argument("--text-layers", type=int, default=6)
    parser.add_argument("--words", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--embedding", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.image_model, args.text_width, args.text_layers, args.words = "vit_tiny_patch16_224", 64, 1, 8
        args.vocabulary, args.embedding, args.batch_size, args.workers = 1000, 32, 2, 1
        args.image_size, args.image_depth = 32, 2
    return args


class CaptionedImages(Dataset):
    """Images of random bytes, and captions of random words."""

    def __init__(self, args):
        self.length = args.steps_per_epoch * args.batch_size
        self.images = torch.randint(0, 256, (256, 3, args.image_size, args.image_size), dtype=torch.uint8)
        self.captions = torch.randint(3, args.vocabulary, (4096, args.words))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.images[index % len(self.images)], self.captions[index % len(self.captions)]


class ImageText(nn.Module):
    """Two encoders, each with a projection to unit vectors."""

    def __init__(self, args):
        super().__init__()
        self.images = timm.create_model(
            args.image_model, pretrained=False, num_classes=0, img_size=args.image_size, depth=args.image_depth
        )
        config = RobertaConfig(
            vocab_size=args.vocabulary,
            hidden_size=args.text_width,
            num_hidden_layers=args.text_layers,
            num_attention_heads=args.text_width // 64,
            intermediate_size=4 * args.text_width,
            max_position_embeddings=args.words + 2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.texts = RobertaModel(config, add_pooling_layer=False)
        self.image_projection = nn.Linear(self.images.num_features, args.embedding, bias=False)
        self.text_projection = nn.Linear(args.text_width, args.embedding, bias=False)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, captions):
        seen = functional.normalize(self.image_projection(self.images(images)), dim=-1)
        states = self.texts(input_ids=captions).last_hidden_state
        read = functional.normalize(self.text_projection(states[:, 0]), dim=-1)
        return self.scale.exp() * seen @ read.T


def main():
    args = parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(77)
    torch.set_float32_matmul_precision("high")
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        CaptionedImages(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu,
        drop_last=True, persistent_workers=True,
    )  # fmt: skip
    model = ImageText(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.2, fused=on_gpu)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * args.steps_per_epoch)
    pairs = torch.arange(args.batch_size, device=device)

    for epoch in range(args.epochs):
        model.train()
        start, total = time.time(), torch.zeros((), device=device)
        for step, (images, captions) in enumerate(loader, 1):
            images, captions = images.to(device, non_blocking=True), captions.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                logits = model(images.to(torch.bfloat16).sub(127.5).div(58.0), captions)
            logits = logits.float()
            loss = (functional.cross_entropy(logits, pairs) + functional.cross_entropy(logits.T, pairs)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.detach()
            if step % 50 == 0:
                rate = step * args.batch_size / (time.time() - start)
                print(f"epoch {epoch} step {step} loss {total.item() / step:.3f} {rate:.0f} pairs/s", flush=True)
        torch.save(model.state_dict(), args.output / "clip.pt")


if __name__ == "__main__":
    main()
