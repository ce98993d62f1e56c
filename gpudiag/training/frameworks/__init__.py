"""Support PyTorch and TensorFlow. Importing these modules imports neither framework.

A program that starts training processes uses `framework.Framework`. A training process uses `session.runtime.Runtime`.
"""
