"""Where a workload's batches come from: `batches` chooses.

`pool` makes them of samples in memory, `batch_server` and `batch_client` over ZeroMQ; `prefetch` and `micro_batches`
stand between them and the step.
"""
