"""Sessions that a trainer's callbacks drive: `keras`, `lightning`, `transformers`; each imports only its library."""
