"""Analyse pipeline-parallel jobs: simulate their operations, and find causes of imbalance."""
