"""Predict a volume on disk. `blocks` cuts volumes, `storage` reads and writes them, `unet3d_predict` is the program."""
