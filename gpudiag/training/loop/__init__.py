"""Sessions in a user's training loop: `gpudiag.profile` and the callbacks of trainers."""
