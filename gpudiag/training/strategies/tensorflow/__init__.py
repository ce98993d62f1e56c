"""The TensorFlow strategies. `registry` lists strategies without importing TensorFlow."""
