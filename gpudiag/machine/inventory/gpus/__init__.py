"""Read the GPUs' properties through NVML. Only the module `nvml` calls NVML; `visible` applies CUDA_VISIBLE_DEVICES."""
