"""Faults of known size in TensorFlow's training loop: what `gpudiag selftest --framework tensorflow` runs.

Nothing of this leaves a mark that a user's own loop would not leave: unmarked runs have TensorFlow's step marks alone.
"""
