"""Reader of XSpace, the format of TensorFlow's profiler."""
