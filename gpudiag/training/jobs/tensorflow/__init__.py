"""The training loop of all workloads under TensorFlow."""
