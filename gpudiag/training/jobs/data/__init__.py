"""Make batches of the workloads. `batches` chooses the source. `batch_client` and `batch_server` use ZeroMQ."""
