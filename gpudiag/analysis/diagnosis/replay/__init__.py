"""Replay: what would the step time be if one cause went away? A graph of host and device, edited and run again."""

from gpudiag.analysis.diagnosis.replay.build import build_graph
from gpudiag.analysis.diagnosis.replay.graph import Block, Graph
from gpudiag.analysis.diagnosis.replay.simulate import simulate

__all__ = ["Block", "Graph", "build_graph", "simulate"]
