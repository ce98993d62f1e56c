"""TensorFlow in a training process: its clock, its profiler, its marks, its cluster.

Nothing here imports TensorFlow when it is imported itself.
"""
