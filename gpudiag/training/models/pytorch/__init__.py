"""The models in plain PyTorch: `workload` is their interface, `gradients` describes one without training."""
