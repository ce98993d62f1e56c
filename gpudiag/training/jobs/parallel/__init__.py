"""The `gpt` workload divided over processes by pipeline, data, expert, context and tensor parallelism."""
