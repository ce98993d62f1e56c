"""The models in plain PyTorch, a file each. `workload` says what one is; `gradients` describes one untrained."""
