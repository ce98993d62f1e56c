"""The rules, one file each; `gpudiag.analysis.diagnosis.registry` lists them."""
