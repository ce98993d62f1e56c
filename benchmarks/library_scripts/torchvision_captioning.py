# mypy: ignore-errors
# ruff: noqa: D102, PLW2901
"""Train an image captioning model: a ResNet of torchvision encodes, an LSTM writes the caption."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--caption-length", type=int, default=48)
    parser.add_argument("--vocabulary", type=int, default=10000)
    parser.add_argument("--embed-size", type=int, default=512)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument(
        "--fixed", action="store_true", help="nn.LSTM over the whole caption instead of a loop of cells"
    )
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.image_size, args.vocabulary, args.workers = 2, 32, 500, 1
        args.embed_size, args.hidden_size = 32, 32
    return args


class Captions(Dataset):
    """Images as bytes with captions of random words."""

    def __init__(self, args):
        self.length = args.steps_per_epoch * args.batch_size
        self.images = torch.randint(0, 256, (128, 3, args.image_size, args.image_size), dtype=torch.uint8)
        self.captions = torch.randint(0, args.vocabulary, (1024, args.caption_length + 1))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.images[index % 128], self.captions[index % 1024]


class Captioner(nn.Module):
    """Encoder and decoder. The image's features are the decoder's first state; training uses teacher forcing."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        backbone = resnet18(weights=None)
        self.encoder = nn.Sequential(*list(backbone.children())[:-1], nn.Flatten())
        self.to_hidden, self.to_memory = nn.Linear(512, args.hidden_size), nn.Linear(512, args.hidden_size)
        self.embed = nn.Embedding(args.vocabulary, args.embed_size)
        self.cell = nn.LSTMCell(args.embed_size, args.hidden_size)
        self.lstm = nn.LSTM(args.embed_size, args.hidden_size, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.out = nn.Linear(args.hidden_size, args.vocabulary)

    def forward(self, images, captions):
        features = self.encoder(images.float().div(255))
        hidden, memory = self.to_hidden(features), self.to_memory(features)
        words = self.embed(captions)
        if self.args.fixed:
            states = self.lstm(words, (hidden[None], memory[None]))[0]
        else:
            states = []
            for position in range(captions.shape[1]):
                hidden, memory = self.cell(words[:, position], (hidden, memory))
                states.append(hidden)
            states = torch.stack(states, dim=1)
        return self.out(self.dropout(states))


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Captions(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=device.type == "cuda",
        persistent_workers=True, drop_last=True,
    )  # fmt: skip
    model = Captioner(args).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4, fused=device.type == "cuda")

    for epoch in range(args.epochs):
        model.train()
        start = time.time()
        for step, (images, captions) in enumerate(loader, 1):
            images, captions = images.to(device, non_blocking=True), captions.to(device, non_blocking=True)
            scores = model(images, captions[:, :-1])
            loss = criterion(scores.flatten(0, 1), captions[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 5.0)
            optimizer.step()
            if step % 100 == 0:
                each = 1e3 * (time.time() - start) / step
                print(f"epoch {epoch} [{step}/{args.steps_per_epoch}] {loss.item():.3f} {each:.1f} ms", flush=True)
        torch.save({"epoch": epoch, "model": model.state_dict()}, args.output / "checkpoint.pth.tar")


if __name__ == "__main__":
    main()
