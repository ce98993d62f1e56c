"""Measure a user's training loop with `gpudiag.profile` or with the callbacks for trainers."""
