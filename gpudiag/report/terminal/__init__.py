"""Print reports in the terminal: of a run (`report`), a pipeline-parallel job, a recommendation and the selftest."""
