"""Rules about the computation of kernels, and about hosts that compile."""
