"""Measure trainers that have callbacks: `keras`, `lightning`, `transformers`. Each module imports only its library."""
