"""Support TensorFlow in a training process. Importing these modules does not import TensorFlow."""
