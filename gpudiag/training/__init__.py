"""Programs that run in and around a training process."""
