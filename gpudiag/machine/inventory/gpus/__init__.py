"""Read the GPUs' properties through NVML, which only `nvml` calls. `visible` applies CUDA_VISIBLE_DEVICES."""
