"""From traces to why: timeline → attribution → diagnosis, and what follows from several analyses."""
