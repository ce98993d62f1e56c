# mypy: ignore-errors
"""Train Whisper with accelerate; the gradient norm of each parameter is recorded in each step."""

import argparse
import json
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperConfig, WhisperForConditionalGeneration, get_linear_schedule_with_warmup


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-device-batch-size", type=int, default=16)
    parser.add_argument("--frames", type=int, default=3000)
    parser.add_argument("--label-length", type=int, default=128)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--checkpoint-steps", type=int, default=500)
    parser.add_argument("--logging-steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="record the total norm only, when logging")
    args = parser.parse_args()
    if args.tiny:
        args.per_device_batch_size, args.frames, args.label_length, args.workers = 2, 100, 8, 1
    return args


class Speech(Dataset):
    """Random log-mel spectrograms with random words."""

    def __init__(self, args, vocabulary):
        self.length = args.max_steps * args.per_device_batch_size
        self.features = torch.randn(128, 80, args.frames)
        self.labels = torch.randint(0, vocabulary, (1024, args.label_length))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"input_features": self.features[index % 128], "labels": self.labels[index % 1024]}


def make_config(args):
    """Return the configuration of whisper-small, or of a smaller model with `--tiny`."""
    width, layers = (64, 2) if args.tiny else (768, 12)
    return WhisperConfig(
        vocab_size=1000 if args.tiny else 51865,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=width // 64,
        decoder_attention_heads=width // 64,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=args.frames // 2,
        max_target_positions=448,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        begin_suppress_tokens=None,
        use_cache=False,
    )


def main():
    args = parse_args()
    set_seed(5)
    args.output.mkdir(parents=True, exist_ok=True)
    on_gpu = args.device.startswith("cuda")
    accelerator = Accelerator(
        mixed_precision="bf16",
        cpu=not on_gpu,
        project_dir=str(args.output),
        dataloader_config=DataLoaderConfiguration(non_blocking=on_gpu),
    )
    config = make_config(args)
    model = WhisperForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=on_gpu)
    loader = DataLoader(
        Speech(args, config.vocab_size), batch_size=args.per_device_batch_size, shuffle=True,
        num_workers=args.workers, pin_memory=on_gpu,
    )  # fmt: skip
    scheduler = get_linear_schedule_with_warmup(optimizer, 50, args.max_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    start, history = time.time(), []
    for step, batch in enumerate(loader, 1):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if not args.fixed:
            norms = {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
            history.append({"step": step, **norms})
        total = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % args.logging_steps == 0:
            each = (time.time() - start) / step
            accelerator.print(f"step {step} loss {loss.item():.3f} norm {float(total):.2f} {each:.3f} s", flush=True)
        if step % args.checkpoint_steps == 0:
            accelerator.save_state(str(args.output / f"step_{step}"))
            (args.output / "gradient_norms.json").write_text(json.dumps(history), encoding="utf-8")
        if step == args.max_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
