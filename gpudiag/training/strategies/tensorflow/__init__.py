"""The TensorFlow strategies. `registry` lists them without importing TensorFlow."""
