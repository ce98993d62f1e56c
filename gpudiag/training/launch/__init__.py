"""Start the training processes, watch them, and bring their records together, whatever happens to them."""

from gpudiag.training.frameworks.framework import Plan
from gpudiag.training.launch.interpreter import Interpreter, inspect_interpreter
from gpudiag.training.launch.launcher import launch

__all__ = ["Interpreter", "Plan", "inspect_interpreter", "launch"]
