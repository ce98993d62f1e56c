# mypy: ignore-errors
"""Fine-tune a Mistral model on instructions with LoRA and accelerate; AdamW updates one matrix after another."""

import argparse
import logging
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import MistralConfig, MistralForCausalLM, get_cosine_schedule_with_warmup

logger = logging.getLogger("peft_instructions")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="update all matrices together")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.sequence_length, args.layers, args.workers = 2, 16, 2, 1
        args.hidden_size, args.vocabulary, args.rank = 64, 1000, 4
    return args


class Instructions(Dataset):
    """Random tokens; the first third is an instruction, which is not learned."""

    def __init__(self, args):
        self.length = args.max_steps * args.batch_size
        self.tokens = torch.randint(3, args.vocabulary, (2048, args.sequence_length))
        self.labels = self.tokens.clone()
        self.labels[:, : args.sequence_length // 3] = -100

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index % 2048], "labels": self.labels[index % 2048]}


def make_model(args):
    """Return a Mistral model in bf16 with trainable LoRA matrices in fp32."""
    config = MistralConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden_size,
        intermediate_size=args.hidden_size * 7 // 2,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden_size // 64 or 1,
        num_key_value_heads=args.hidden_size // 256 or 1,
        max_position_embeddings=args.sequence_length,
        sliding_window=None,
        use_cache=False,
    )
    model = MistralForCausalLM(config).to(torch.bfloat16)
    lora = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    set_seed(17)
    args.output.mkdir(parents=True, exist_ok=True)
    on_gpu = args.device.startswith("cuda")
    accelerator = Accelerator(mixed_precision="bf16", cpu=not on_gpu, project_dir=str(args.output))
    model = make_model(args)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    logger.info("%d trainable matrices", len(trainable))
    optimizer = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0, foreach=False)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 50, args.max_steps)
    loader = DataLoader(
        Instructions(args), batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    total = torch.zeros((), device=accelerator.device)
    for step, batch in enumerate(loader, 1):
        loss = model(**batch).loss
        accelerator.backward(loss)
        for group in optimizer.param_groups:
            group["foreach"] = args.fixed
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total += loss.detach()
        if step % 50 == 0:
            logger.info("step %d: mean loss %.3f", step, total.item() / step)
        if step == args.max_steps:
            break
    accelerator.unwrap_model(model).save_pretrained(args.output / "adapter")
    accelerator.end_training()


if __name__ == "__main__":
    main()
