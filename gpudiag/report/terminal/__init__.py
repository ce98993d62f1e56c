"""Terminal reports of a run (`report`), a recommendation and the selftest."""
