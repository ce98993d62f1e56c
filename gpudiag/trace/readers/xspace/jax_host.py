"""Find kinds and roles of the events of JAX's host threads.

The main thread dispatches compiled functions, which the devices run later, and waits where the program reads a value:

    python   train │ PjitFunction(train_step) │ ... │ np.asarray(jax.Array), in float(loss) │
    device                         │ jit_train_step: fusion, dot, all-reduce, … │

A call of a function that was not compiled for these shapes compiles it first, within `PjitFunction`.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct, median, outermost
from gpudiag.model.event import EventKind, Role
from gpudiag.trace.readers.xspace.planes import Plane

#: Call of a compiled function by the main thread, with the function's name.
_CALL = re.compile(r"PjitFunction\((?P<function>.*)\)$|(?:pmap|PmapFunction)\((?P<mapped>.*)\)$")
#: Layers of a dispatch, and transfers of its arguments to the devices.
_DISPATCH = re.compile(
    r"PjitFunction\(|pmap\(|PmapFunction\(|\w*(?:PjRt|PJRT|Pjrt|Tfrt)\w*|ExecuteReplicated|ParseArguments|DevicePut"
    r"|(?:batched_)?device_put|\w*shard_args?\b|cpp_pjit_\w+|BufferFromHost|(?:Batched)?CopyToDevice|batched_copy_array"
    r"|ArrayImpl\.|PythonRefManager|Wait for (?:donation|usage) holds|BufferSequencingEvent"
)
_COMPILES = re.compile(
    r"lower_\w+|backend_compile|trace_to_jaxpr|\w*XlaCompil\w*|\w*::Compile\b|\w*Compile(?:AndLoad)?$"
)
#: Calls in which the host waits for a value from a device. Only the Python tracer marks `block_until_ready`.
_WAITS = re.compile(r"np\.asarray\(jax\.Array\)$|\$api\.py:\d+ block_until_ready$|\$array\.py:\d+ block_until_ready$")
#: Modules of libraries, whose functions the Python tracer records too, by file names without directories.
_LIBRARY_MODULES = (
    "__init__ _dtypes _methods abc abstract_arrays ad ad_checkpoint api api_util array array_constructors "
    "array_methods basearray batching codecs compilation_cache compiler config config_ext contextlib "
    "contextmanagers copy core custom_derivatives dataclasses dispatch dtypes earray einsum enum fromnumeric "
    "func_wrapper functools indexing inspect layout lax lax_numpy linear_util literals logging math mesh mlir "
    "monitoring multiprocessing named_sharding numeric op_shardings partial_eval partition_spec path pickle pjit "
    "prng profiler pxla queue random re reductions selectors sharding sharding_impls shape_poly slicing "
    "source_info_util stages subprocess tensor_contractions test_util threading traceback_util tree tree_util "
    "types typing ufuncs util utils warnings weakref xla xla_bridge xla_client"
)
_LIBRARY_FILES = frozenset(f"{module}.py" for module in _LIBRARY_MODULES.split())
_FRAME = re.compile(r"\$(?P<file>[\w.-]+\.py):(?P<line>\d+) (?P<function>.+)$")
#: Minimum number of calls of a function that count as steps.
_FEWEST_CALLS = 3
#: Maximum relative deviation of a regular function's distances from their median. A distance is the number of calls of
#: all functions from one call of the function to the next.
_APART = 0.2


def dispatches(name: str) -> bool:
    """Return whether a host event of this name belongs to the dispatch of a compiled function.

    >>> dispatches("PjitFunction(train_step)"), dispatches("load data")
    (True, False)
    """
    return _DISPATCH.match(name) is not None


def compiles(name: str) -> bool:
    """Return whether a host event of this name traces, lowers or compiles a function."""
    return _COMPILES.match(name) is not None


def copies_arguments(name: str) -> bool:
    """Return whether a host event of this name copies arguments in host memory, before the device reads them."""
    return name == "H2D Dispatch"


def user_function(name: str) -> str | None:
    """Return a function of the user's program as PyTorch's profiler names it; None for other events.

    >>> user_function("$train.py:42 log_metrics"), user_function("$array.py:298 __float__")
    ('train.py(42): log_metrics', None)
    >>> user_function("$time sleep") is None
    True
    """
    frame = _FRAME.match(name)
    if frame is None or frame["file"] in _LIBRARY_FILES:
        return None
    return f"{frame['file']}({frame['line']}): {frame['function']}"


def shown_name(name: str) -> str:
    """Return a host event's name for reports: a function without the Python tracer's notation, or the name itself.

    >>> shown_name("$api.py:3154 block_until_ready"), shown_name("PjitFunction(train_step)")
    ('block_until_ready', 'PjitFunction(train_step)')
    """
    if name.startswith("$") and _WAITS.match(name):
        return name.rpartition(" ")[2]
    return user_function(name) or name


def called_function(name: str) -> str | None:
    """Return the function that an event calls, as a part of its XLA module's name; None if the event is no call.

    >>> called_function("PjitFunction(<lambda>)"), called_function("PjitFunction(train_step)")
    ('lambda', 'train_step')
    """
    match = _CALL.match(name)
    return _plain(match["function"] or match["mapped"] or "") if match else None


def module_function(module: str) -> str:
    """Return the function of an XLA module.

    >>> module_function("jit__lambda"), module_function("jit_train_step")
    ('lambda', 'train_step')
    """
    return _plain(re.sub(r"(?:jit|pmap)_+", "", module, count=1))


def _plain(function: str) -> str:
    return re.sub(r"\W", "_", function).strip("_")


def main_line(plane: Plane) -> int | None:
    """Return the index of the line with the most calls of compiled functions; None without calls."""
    calls = plane.named(_CALL.match)
    return int(np.bincount(plane.line[calls]).argmax()) if calls.any() else None


def outermost_calls(plane: Plane, line: int) -> NDArray[np.intp]:
    """Return the events of a line that call a function and are in no other call, sorted by start."""
    rows = np.flatnonzero((plane.line == line) & plane.named(_CALL.match))
    rows = rows[np.lexsort((-plane.end_ns[rows], plane.start_ns[rows]))]
    return rows[outermost(plane.start_ns[rows], plane.end_ns[rows])]


def calls_of_steps(plane: Plane, line: int) -> NDArray[np.intp]:
    """Return the calls on a line that begin steps of a loop without marks: the rarest function called regularly.

    It is assumed that each step calls this function once, and makes about as many calls as the other steps, so that the
    function's calls are evenly spaced among all calls. Fewer than three calls are no steps. Of functions that are
    called equally often, the function with the longest calls is used.
    """
    calls = outermost_calls(plane, line)
    best: tuple[int, int] | None = None
    chosen = np.empty(0, np.intp)
    for name in distinct(plane.name[calls]).tolist():
        positions = np.flatnonzero(plane.name[calls] == name)
        if len(positions) < _FEWEST_CALLS:
            continue
        distance = np.diff(positions)
        # A deviation by one call is always allowed.
        if (np.abs(distance - median(distance)) > max(_APART * median(distance), 1)).any():
            continue
        rows = calls[positions]
        rank = (-len(rows), int((plane.end_ns[rows] - plane.start_ns[rows]).sum()))
        if best is None or rank > best:
            best, chosen = rank, rows
    return chosen


def jax_waits(plane: Plane) -> NDArray[np.bool_]:
    """Return bool[n]: whether each event is a wait of the host for a device, inside no other such wait."""
    waits = np.zeros(len(plane.name), np.bool_)
    rows = np.flatnonzero(plane.named(_WAITS.match))
    for line in distinct(plane.line[rows]).tolist():
        on_line = rows[plane.line[rows] == line]
        on_line = on_line[np.lexsort((-plane.end_ns[on_line], plane.start_ns[on_line]))]
        waits[on_line[outermost(plane.start_ns[on_line], plane.end_ns[on_line])]] = True
    return waits


def jax_kinds(plane: Plane, step: NDArray[np.int64]) -> tuple[NDArray[np.uint8], int | None]:
    """Return (each event's `EventKind`, index of the main thread's line; None if no thread dispatches or marks steps).

    Ranges of the program around dispatches are annotations. If the loop has no step marks, the calls that begin a step
    are annotations too; the inner layers of these calls remain operators.

    Args:
        plane: a host's plane.
        step: int64[n], the step number of each event; negative if the event marks no step.
    """
    kind = np.full(len(plane.name), EventKind.OPERATOR, np.uint8)
    python = plane.named(lambda name: name.startswith("$"))
    kind[python] = EventKind.PYTHON
    marks = np.flatnonzero(step >= 0)
    line = int(np.bincount(plane.line[marks]).argmax()) if len(marks) else main_line(plane)
    if line is not None:
        calls = outermost_calls(plane, line)
        around = (plane.line == line) & ~python & ~plane.named(dispatches)
        first = np.searchsorted(plane.start_ns[calls], plane.start_ns)
        after = np.searchsorted(plane.start_ns[calls], plane.end_ns)
        kind[around & (after > first)] = EventKind.ANNOTATION  # at least one call begins within the event
        if not len(marks):
            kind[calls_of_steps(plane, line)] = EventKind.ANNOTATION
    kind[marks] = EventKind.ANNOTATION
    kind[jax_waits(plane)] = EventKind.RUNTIME
    return kind, line


def set_jax_roles(plane: Plane, kind: NDArray[np.uint8], step: NDArray[np.int64], role: NDArray[np.uint8]) -> None:
    """Set the roles of waits, of the user's functions, and of calls that begin steps; `role` is changed in place.

    `kind` is the result of `jax_kinds`, and `step` its argument.
    """
    role[jax_waits(plane)] = Role.SYNCHRONIZATION
    role[(kind == EventKind.PYTHON) & plane.named(user_function)] = Role.USER_FUNCTION
    if not (step >= 0).any():
        role[(kind == EventKind.ANNOTATION) & plane.named(_CALL.match)] = Role.STEP_MARK
