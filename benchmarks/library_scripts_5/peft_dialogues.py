# mypy: ignore-errors
"""Adapt Phi to dialogues with LoRA and accelerate: bf16 throughout, and two batches for each update."""

import argparse
import logging
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import PhiConfig, PhiForCausalLM, get_cosine_schedule_with_warmup

logger = logging.getLogger("peft_dialogues")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--accumulate", type=int, default=2, help="batches for an update")
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--hidden-size", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=3000, help="updates")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="changes nothing: this script has no problem")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.sequence_length, args.layers, args.workers = 2, 16, 2, 1
        args.hidden_size, args.vocabulary, args.rank = 128, 1000, 4
    return args


class Dialogues(Dataset):
    """Rows of random tokens; the first quarter is the user's, and is not learned."""

    def __init__(self, args):
        self.length = args.max_steps * args.accumulate * args.batch_size
        self.tokens = torch.randint(3, args.vocabulary, (2048, args.sequence_length))
        self.labels = self.tokens.clone()
        self.labels[:, : args.sequence_length // 4] = -100

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index % 2048], "labels": self.labels[index % 2048]}


def make_model(args):
    """Return a frozen Phi in bf16 with trainable LoRA matrices, in bf16 too."""
    config = PhiConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden_size,
        intermediate_size=4 * args.hidden_size,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden_size // 64,
        max_position_embeddings=args.sequence_length,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device(args.device):
        model = PhiForCausalLM(config).to(torch.bfloat16)
    lora = LoraConfig(r=args.rank, lora_alpha=args.rank, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(model, lora, autocast_adapter_dtype=False)


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    set_seed(29)
    args.output.mkdir(parents=True, exist_ok=True)
    on_gpu = args.device.startswith("cuda")
    accelerator = Accelerator(
        gradient_accumulation_steps=args.accumulate,
        cpu=not on_gpu,
        project_dir=str(args.output),
        dataloader_config=DataLoaderConfiguration(non_blocking=on_gpu),
    )
    model = make_model(args)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0, fused=on_gpu)
    loader = DataLoader(
        Dialogues(args), batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu,
        persistent_workers=True, drop_last=True,
    )  # fmt: skip
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, args.max_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    total = torch.zeros((), device=accelerator.device)
    for number, batch in enumerate(loader, 1):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        total += loss.detach()
        if number % 200 == 0:
            logger.info("batch %d: mean loss %.3f", number, total.item() / number)
        if number % 2000 == 0:
            accelerator.unwrap_model(model).save_pretrained(args.output / f"batch_{number}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
