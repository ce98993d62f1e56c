"""Inventory of the machine, without a framework or CUDA: `gpus/` by NVML, `host/` by /proc and /sys, and `links`."""
