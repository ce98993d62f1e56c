"""Rules about what kernels compute, and about hosts that compile."""
