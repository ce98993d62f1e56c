"""What the machine has, without a framework and without CUDA.

`gather` puts it together from `gpus/` (NVML), `host/` (/proc and /sys), the `links` between GPUs, and their `islands`.
"""
