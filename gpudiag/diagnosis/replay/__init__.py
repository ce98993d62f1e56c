"""Replay: what would the step time be if one cause went away? A graph of host and device, edited and run again."""

from gpudiag.diagnosis.replay.build import build_graph
from gpudiag.diagnosis.replay.graph import Block, Graph
from gpudiag.diagnosis.replay.simulate import simulate

__all__ = ["Block", "Graph", "build_graph", "simulate"]
