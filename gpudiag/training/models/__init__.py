"""What is trained. `registry` lists it and imports no framework; a model is a file in `pytorch/` and `tensorflow/`."""
