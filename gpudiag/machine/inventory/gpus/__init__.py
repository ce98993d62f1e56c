"""Read the GPUs' properties through NVML. Only `nvml` calls NVML; `visible` applies CUDA_VISIBLE_DEVICES."""
