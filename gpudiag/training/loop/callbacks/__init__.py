"""Sessions for trainers with callbacks: `keras`, `lightning`, `transformers`. Each module imports only its library."""
