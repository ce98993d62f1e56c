"""Predict a volume on disk. `blocks` cuts it, `storage` reads and writes it, and `unet3d_predict` is the program."""
