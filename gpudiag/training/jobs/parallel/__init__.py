"""Train the workload `gpt` with pipeline, data, expert, context and tensor parallelism."""
