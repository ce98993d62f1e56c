"""What runs in and around a training process."""
