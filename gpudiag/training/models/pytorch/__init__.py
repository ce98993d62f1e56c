"""Define the workloads under PyTorch. `workload` is the interface. `gradients` describes gradients without training."""
