"""The selftest's loop under TensorFlow, with TensorFlow's step marks alone, and the faults that are put into it."""
