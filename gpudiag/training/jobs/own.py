"""`module:function`: the user's own training, run in each process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable

from gpudiag.errors import UsageError


def find_function(name: str) -> Callable[[], object]:
    """Import `module:function`, looking in the current directory first, as `python -m` does.

    Raises:
        UsageError: there is no such module, or it has no such function.
    """
    module_name, _, function_name = name.partition(":")
    here = os.getcwd()  # noqa: PTH109  # sys.path holds strings
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise UsageError(
                f"there is no module '{module_name}'", "Give module:function as Python would import it from here."
            ) from error
        raise
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"module '{module_name}' has no function '{function_name}'", "Check its name.")
    return function  # type: ignore[no-any-return]  # found by name
