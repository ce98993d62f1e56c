"""Find a user-defined workload `module:function`, and call it with the change that `--try` asks for."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable

from gpudiag.errors import UsageError
from gpudiag.model.job import Job


def find_function(name: str) -> Callable[[], object]:
    """Import and return `module:function`. The current directory is put first on `sys.path`, as `python -m` does.

    Raise UsageError if the module does not exist, or does not have this function.
    """
    module_name, _, function_name = name.partition(":")
    here = os.getcwd()  # noqa: PTH109  # sys.path holds strings
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # If another module is missing, the user's module exists and imports the missing one.
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise UsageError(
                f"there is no module '{module_name}'", "Give module:function as Python would import it from here."
            ) from error
        raise
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"module '{module_name}' has no function '{function_name}'", "Check its name.")
    return function  # type: ignore[no-any-return]  # found by name


def call_changed(job: Job) -> None:
    """Call the job's function. If the job has a change, pass True for the argument that is named after the change.

    Raise UsageError if the function has no such argument.
    """
    function = find_function(job.workload)
    arguments = {} if job.change is None else {job.change.replace("-", "_"): True}
    known = inspect.signature(function).parameters
    if not arguments.keys() <= known.keys():
        raise UsageError(
            f"{job.workload} has no argument '{next(iter(arguments))}'", "Add it, with the default False, and use it."
        )
    function(**arguments)
