"""Records of pipeline-parallel jobs that were recorded as tables of operations."""
