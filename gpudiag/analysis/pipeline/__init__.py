"""Analysis of pipeline-parallel jobs: simulation of their operations, and causes of imbalance."""
