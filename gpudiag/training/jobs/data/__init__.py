"""Make batches of the workloads: in memory or with a DataLoader (`batches`), or in servers (`batch_client`)."""
