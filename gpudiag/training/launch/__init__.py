"""Start training processes, watch them until they end or fail, and combine their records."""

from gpudiag.training.frameworks.framework import Plan
from gpudiag.training.launch.interpreter import Interpreter, inspect_interpreter
from gpudiag.training.launch.launcher import launch

__all__ = ["Interpreter", "Plan", "inspect_interpreter", "launch"]
