"""Start the training processes, watch them, and bring their records together, whatever happens to them."""

from gpudiag.launch.interpreter import Interpreter, inspect_interpreter
from gpudiag.launch.launcher import launch
from gpudiag.launch.plan import Plan, Rendezvous

__all__ = ["Interpreter", "Plan", "Rendezvous", "inspect_interpreter", "launch"]
