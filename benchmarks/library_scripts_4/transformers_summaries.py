# mypy: ignore-errors
# ruff: noqa: D102
"""Train BART to summarize in a plain loop that reads the settings file each step, so that users can edit the file."""

import argparse
import time
from pathlib import Path

import torch
import yaml
from transformers import BartConfig, BartForConditionalGeneration


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--source-length", type=int, default=512)
    parser.add_argument("--summary-length", type=int, default=128)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=6, help="of the encoder, and of the decoder")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--sources", type=int, default=240, help="newspapers, each with its settings")
    parser.add_argument("--max-steps", type=int, default=4000)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="read the settings every 1000 steps")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.source_length, args.summary_length, args.width = 2, 16, 8, 64
        args.layers, args.vocabulary, args.sources = 1, 1000, 5
    return args


def write_settings(path, sources):
    """Write the settings that are used unless the file is edited."""
    newspapers = {
        f"newspaper_{number:03d}": {"share": round(1 / sources, 6), "temperature": 1.0, "language": "en"}
        for number in range(sources)
    }
    optimizer = {"lr": 3e-5, "weight_decay": 0.01, "clip": 1.0}
    path.write_text(yaml.safe_dump({"optimizer": optimizer, "newspapers": newspapers}), encoding="utf-8")


class Articles:
    """Random articles and summaries of fixed lengths, as tokens on the device."""

    def __init__(self, args, device):
        self.args, self.device = args, device
        self.sources = torch.randint(3, args.vocabulary, (1024, args.source_length), device=device)
        self.summaries = torch.randint(3, args.vocabulary, (1024, args.summary_length), device=device)

    def draw(self):
        chosen = torch.randint(0, len(self.sources), (self.args.batch_size,), device=self.device)
        return self.sources[chosen], self.summaries[chosen]


def apply_settings(settings, optimizer):
    """Set the optimizer's options; return the maximum norm of the gradient."""
    options = settings["optimizer"]
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = options["lr"], options["weight_decay"]
    return options["clip"]


def main():
    args = parse_args()
    device = torch.device(args.device)
    torch.manual_seed(5)
    args.output.mkdir(parents=True, exist_ok=True)
    settings_file = args.output / "settings.yaml"
    write_settings(settings_file, args.sources)
    settings = yaml.safe_load(settings_file.read_text(encoding="utf-8"))

    config = BartConfig(
        vocab_size=args.vocabulary,
        d_model=args.width,
        encoder_layers=args.layers,
        decoder_layers=args.layers,
        encoder_attention_heads=args.width // 64,
        decoder_attention_heads=args.width // 64,
        encoder_ffn_dim=4 * args.width,
        decoder_ffn_dim=4 * args.width,
        max_position_embeddings=1024,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = BartForConditionalGeneration(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=device.type == "cuda")
    articles = Articles(args, device)

    model.train()
    start, total = time.time(), torch.zeros((), device=device)
    for step in range(1, args.max_steps + 1):
        sources, summaries = articles.draw()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(input_ids=sources, labels=summaries, use_cache=False).loss
        loss.backward()
        if not args.fixed or step % 1000 == 0:
            settings = yaml.safe_load(settings_file.read_text(encoding="utf-8"))
        clip = apply_settings(settings, optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
        if step % 100 == 0:
            each = 1e3 * (time.time() - start) / step
            print(f"step {step} loss {total.item() / step:.3f} {each:.0f} ms", flush=True)
        if step % 2000 == 0:
            model.save_pretrained(args.output / f"step_{step}")


if __name__ == "__main__":
    main()
