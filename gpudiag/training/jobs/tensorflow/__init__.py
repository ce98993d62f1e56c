"""The training loop of the workloads under TensorFlow."""
