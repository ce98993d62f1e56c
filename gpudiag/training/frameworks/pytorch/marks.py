"""Mark module calls and garbage collections as ranges of the profiler, while a recording runs.

Module marks show to which module each operator belongs. `nn.Module.__call__` is replaced while a full trace is
recorded, because global hooks (`register_module_forward_hook`) would slow down every call of every module. The ranges
take 1 to 4 µs (`benchmarks/module_marks.py`), while `record_function` would take 10 µs.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any

from gpudiag.training.session.ranges import PREFIX

#: Names of the only child of a wrapper. The wrappers are those of DistributedDataParallel, FullyShardedDataParallel,
#: torch.compile and activation checkpointing.
_WRAPPED = frozenset({"module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})

_COMPILED = "torch.compile has compiled part of the program, which marks might make it compile anew"
_NO_MARKS = "this PyTorch has no ranges that cost little enough"

#: Youngest generation whose garbage collections are marked. Collections of generation 0 are shorter than a range.
_MIN_GENERATION = 1


def anything_compiled() -> bool:
    """Return whether torch.compile has compiled anything in this process, without importing PyTorch."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return False
    # Code compiled with `fullgraph=True` is counted in `stats` only.
    return any(sum(dynamo.counters.get(kind, {}).values()) > 0 for kind in ("frames", "stats"))


class MarkedCollections:
    """Mark each garbage collection of generation 1 or 2 as a range `gpudiag.gc`, in any thread.

    PyTorch's own mark (`record_python_gc_info`) needs recorded stacks, which make the host several times slower.
    """

    def __init__(self) -> None:
        self._record_function: Any = None
        self._range: Any = None

    def start(self) -> None:
        """Mark collections from now until `stop` or until Python shuts down.

        First run a full collection, unless the program has disabled collections. Otherwise a rare full collection could
        fall into the few recorded steps, and seem frequent. In an FSDP job on two H200 GPUs a collection took 85 ms.
        """
        from torch.autograd.profiler import record_function

        self._record_function = record_function
        if gc.isenabled():
            gc.collect()
        gc.callbacks.append(self._collecting)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop marking. Further calls do nothing."""
        atexit.unregister(self.stop)
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        """Begin or end the range of a collection. At most one collection runs at a time."""
        # A collection can begin anywhere, for example within a compiler. If marking fails, the mark is omitted.
        with contextlib.suppress(Exception):
            if phase == "start" and info["generation"] >= _MIN_GENERATION:
                begun = self._record_function(PREFIX + "gc")
                begun.__enter__()
                self._range = begun
            elif phase == "stop" and self._range is not None:
                ended, self._range = self._range, None
                ended.__exit__(None, None, None)


class MarkedModules:
    """Mark each call of a module as a range `gpudiag.module:<root>/<path> (<class>)`.

    `<root>` is the class of the outermost module that contains the called module. `<path>` is the called module's name
    in `named_modules`, without wrappers. Three kinds of modules are not marked, because their work belongs to their
    caller: wrappers, replicas of DataParallel, and modules that a marked module calls without containing them.
    """

    def __init__(self) -> None:
        self._class: Any = None
        self._call: Any = None
        self._marked: Any = None
        self._ranges: _ModuleRanges | None = None

    def start(self) -> str:
        """Start marking; return "", or the reason why marking is impossible."""
        import torch

        fast: Any = getattr(torch._C._profiler, "_RecordFunctionFast", None)  # noqa: SLF001  # public ranges are slower
        if fast is None or anything_compiled():
            return _NO_MARKS if fast is None else _COMPILED
        self._class = torch.nn.Module
        self._call = call = self._class.__call__
        self._ranges = ranges = _ModuleRanges(fast, _containers(self._class))
        compiling = torch.compiler.is_compiling
        label_of, within = ranges.label, ranges.within

        def marked(module: Any, *args: Any, **kwargs: Any) -> Any:
            # While torch.compile traces this call, the trace must contain the original call only.
            label = "" if compiling() else label_of(module)
            return within(label, call, module, args, kwargs) if label else call(module, *args, **kwargs)

        self._marked = marked
        self._class.__call__ = marked
        return ""

    def stop(self) -> None:
        """Stop marking, and end the open ranges. Further calls do nothing."""
        if self._ranges is None:
            return
        if self._class.__call__ is self._marked:  # otherwise later code has wrapped `marked`, and still calls it
            self._class.__call__ = self._call
        self._ranges.close()
        self._ranges = None


class _ModuleRanges:
    """Name ranges of modules, and track open ranges. `fast` makes a range. `containers` comes from `_containers`."""

    def __init__(self, fast: Any, containers: dict[int, Any]) -> None:
        self._fast, self._containers = fast, containers
        #: (label, module) by the module's id. Storing the module keeps its id from being used for another module.
        self._labels: dict[int, tuple[str, Any]] = {}
        self._roots: dict[str, int] = {}  # number of roots by class name; names of further roots end in `#2`, `#3`, …
        self._open: set[Any] = set()
        self._over = False

    def label(self, module: Any) -> str:
        """Return the name of the module's range; "" for a module that is not marked."""
        known = self._labels.get(id(module))
        if known is not None:
            return known[0]
        try:
            return self._label_new(module)
        except Exception:  # noqa: BLE001  # a module whose children cannot be listed runs without a mark
            return ""

    def within(self, label: str, call: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Call the module within a range of this name; return the result. The range ends even if the call raises."""
        mark = self._fast(label)
        mark.__enter__()
        self._open.add(mark)
        try:
            return call(module, *args, **kwargs)
        finally:
            if mark in self._open:
                self._open.discard(mark)
                mark.__exit__(None, None, None)

    def close(self) -> None:
        """End all open ranges, because they point into memory of the recording that is about to be freed."""
        self._over = True
        self._labels.clear()
        self._containers.clear()
        while self._open:
            self._open.pop().__exit__(None, None, None)

    def _label_new(self, module: Any) -> str:
        """Return the label of a module at its first call, and store the labels of all modules of its root."""
        if self._over or getattr(module, "_is_replica", False) or self._in_marked_call():
            return ""
        root = self._outermost(module)
        if next(root.children(), None) is None and next(root.parameters(), None) is None:
            return _label(_class_name(root), "", root)  # not stored: a program may create a loss module in each step
        tree = list(_tree(root, "", set()))
        kind = next(_class_name(child) for path, child in tree if path is not None)  # the root without its wrappers
        self._roots[kind] = number = self._roots.get(kind, 0) + 1
        name = kind if number == 1 else f"{kind}#{number}"
        self._labels |= {id(child): ("" if path is None else _label(name, path, child), child) for path, child in tree}
        return self._labels[id(module)][0]

    def _outermost(self, module: Any) -> Any:
        """Return the outermost module that contains this module."""
        seen: set[int] = set()
        while id(module) in self._containers and id(module) not in seen:
            seen.add(id(module))
            module = self._containers[id(module)]
        return module

    def _in_marked_call(self) -> bool:
        """Return whether this thread is within a marked call."""
        frame: Any = sys._getframe(1)  # noqa: SLF001
        code = _ModuleRanges.within.__code__
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        return frame is not None


def _containers(kind: type) -> dict[int, Any]:
    """Return the parent of each module that has a parent, keyed by the id of the child.

    All modules of the process are searched, because a program may call methods of the outermost module without calling
    the module itself.
    """
    containers: dict[int, Any] = {}
    for module in gc.get_objects():
        if issubclass(type(module), kind) and not module.__dict__.get("_is_replica", False):
            children = module.__dict__.get("_modules")
            if isinstance(children, dict):
                containers |= {id(child): module for child in children.values() if child is not None}
    return containers


def _label(root: str, path: str, module: Any) -> str:
    return f"{PREFIX}module:{root}/{path} ({_class_name(module)})"


def _class_name(module: Any) -> str:
    """Return the name of the module's class; if `fully_shard` has replaced the class, return the original name."""
    kind = type(module)
    bases = kind.__bases__
    sharded = len(bases) > 1 and bases[0].__name__ == "FSDPModule"
    return str((bases[1] if sharded else kind).__name__)


def _wrapped(module: Any) -> Any:
    """Return the module within a wrapper; None if `module` is not a wrapper."""
    children = list(module.named_children())
    return children[0][1] if len(children) == 1 and children[0][0] in _WRAPPED else None


def _tree(module: Any, path: str, seen: set[int]) -> Iterator[tuple[str | None, Any]]:
    """Yield (path, module) for `module` and each module within, once each. The path of a wrapper is None.

    `path` is the path of `module`, and `seen` has the ids of the modules that were yielded already.
    """
    if id(module) in seen:
        return
    seen.add(id(module))
    wrapped = _wrapped(module)
    if wrapped is not None:
        yield None, module
        yield from _tree(wrapped, path, seen)
        return
    yield path, module
    for name, child in module.named_children():
        yield from _tree(child, f"{path}.{name}" if path else name, seen)
