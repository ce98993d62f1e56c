"""The models in plain PyTorch. `workload` is their interface. `gradients` computes a model's sizes without training."""
