"""The GPUs as NVML describes them. Only `nvml` calls NVML; `visible` applies CUDA_VISIBLE_DEVICES."""
