"""List the machine's hardware without a framework or CUDA: GPUs by NVML, the host by /proc and /sys, and links."""
