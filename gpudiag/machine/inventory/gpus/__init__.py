"""The GPUs, as NVML describes them: `gather` asks, `nvml` is the only place that calls it.

`nvlinks` are a GPU's lanes, `processes` who holds it, `visible` what CUDA_VISIBLE_DEVICES leaves of them.
"""
