"""Calls of modules as ranges of the profiler, so that it is known which module each operator worked for.

`nn.Module.__call__` is changed while a full recording runs, and put back. Global hooks (`register_module_forward_hook`)
would take every module through the slow path of its call, and `record_function` takes 10 µs; a range of the kind that
is opened here takes 1 to 4, less than recording the operators of the smallest module.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from gpudiag.training.frameworks.pytorch.compiled import anything_compiled
from gpudiag.training.session.ranges import PREFIX

#: Names of what a wrapper holds, and holds alone: DistributedDataParallel, FullyShardedDataParallel, torch.compile,
#: and what computes a module again in backward.
_WRAPPED = frozenset({"module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})

_COMPILED = "torch.compile has compiled part of the program, which marks might make it compile anew"
_NO_MARKS = "this PyTorch has no ranges that cost little enough"


class MarkedModules:
    """Between `start` and `stop` each call of a module is a range `gpudiag.module:<root>/<path> (<class>)`.

    The root is the outermost module that holds it, by its class; the path is the module's within it, as `named_modules`
    has it, without wrappers. Wrappers, replicas of DataParallel, and what no root holds and another module calls are
    not marked: what they do is done by the module that calls them.
    """

    def __init__(self) -> None:
        self._class: Any = None
        self._call: Any = None
        self._marked: Any = None
        self._ranges: _Ranges | None = None

    def start(self) -> str:
        """Mark from here on, or say why not; empty where all is well."""
        import torch

        fast: Any = getattr(torch._C._profiler, "_RecordFunctionFast", None)  # noqa: SLF001  # no public one is as cheap
        if fast is None or anything_compiled():
            return _NO_MARKS if fast is None else _COMPILED
        self._class = torch.nn.Module
        self._call = call = self._class.__call__
        self._ranges = ranges = _Ranges(fast, _holders(self._class))
        compiling = torch.compiler.is_compiling
        label_of, within = ranges.label_of, ranges.within

        def marked(module: Any, *args: Any, **kwargs: Any) -> Any:
            # What is compiled from here on is compiled as if nothing was changed.
            label = "" if compiling() else label_of(module)
            return within(label, call, module, args, kwargs) if label else call(module, *args, **kwargs)

        self._marked = marked
        self._class.__call__ = marked
        return ""

    def stop(self) -> None:
        """Mark no longer, and end what is open. May be called more often than `start`."""
        if self._ranges is None:
            return
        if self._class.__call__ is self._marked:  # else somebody else has changed it since, and calls this
            self._class.__call__ = self._call
        self._ranges.close()
        self._ranges = None


class _Ranges:
    """The ranges that are open, and the labels of the modules met."""

    def __init__(self, fast: Any, holders: dict[int, Any]) -> None:
        self._fast = fast
        self._holders = holders
        #: By id; the modules are kept beside their labels so that no other takes the id of one that is gone.
        self._labels: dict[int, tuple[str, Any]] = {}
        self._roots: dict[str, int] = {}
        self._open: set[Any] = set()
        self._over = False

    def label_of(self, module: Any) -> str:
        """The range's name; empty for what is not marked."""
        known = self._labels.get(id(module))
        if known is not None:
            return known[0]
        try:
            return self._met(module)
        except Exception:  # noqa: BLE001  # of a module whose parts cannot be asked for: it is called all the same
            return ""

    def within(self, label: str, call: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """The module's call within a range of this name, which ends with it however it ends."""
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
        """End all that is open: each points into what its recording has kept, which is freed (`end_open_ranges`)."""
        self._over = True
        self._labels.clear()
        self._holders.clear()
        while self._open:
            self._open.pop().__exit__(None, None, None)

    def _met(self, module: Any) -> str:
        """The label of a module that is called for the first time, and those of all that its root holds."""
        if self._over or getattr(module, "_is_replica", False) or self._is_within():
            return ""
        root = self._outermost(module)
        if next(root.children(), None) is None and next(root.parameters(), None) is None:
            return _label(_kind(root), "", root)  # a loss: made anew in each step perhaps, and not kept
        tree = list(_tree(root, "", set()))
        kind = next(_kind(one) for path, one in tree if path is not None)
        self._roots[kind] = number = self._roots.get(kind, 0) + 1
        name = kind if number == 1 else f"{kind}#{number}"
        self._labels |= {id(one): ("" if path is None else _label(name, path, one), one) for path, one in tree}
        return self._labels[id(module)][0]

    def _outermost(self, module: Any) -> Any:
        """What holds it, and is held by none."""
        seen: set[int] = set()
        while id(module) in self._holders and id(module) not in seen:
            seen.add(id(module))
            module = self._holders[id(module)]
        return module

    def _is_within(self) -> bool:
        """Is this thread within a marked call? Asked of modules that no root has, of which there are few."""
        frame: Any = sys._getframe(1)  # noqa: SLF001
        code = _Ranges.within.__code__
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        return frame is not None


def _holders(kind: type) -> dict[int, Any]:
    """By id of each module that another holds now, that one.

    The outermost need not be called itself: trainers ask models for a step, which calls their parts.
    """
    found: dict[int, Any] = {}
    for one in gc.get_objects():
        if issubclass(type(one), kind) and not one.__dict__.get("_is_replica", False):
            held = one.__dict__.get("_modules")
            found |= {id(child): one for child in held.values() if child is not None} if isinstance(held, dict) else {}
    return found


def _label(root: str, path: str, module: Any) -> str:
    return f"{PREFIX}module:{root}/{path} ({_kind(module)})"


def _kind(module: Any) -> str:
    """The module's class; of one that `fully_shard` has changed, what it was."""
    kind = type(module)
    bases = kind.__bases__
    sharded = len(bases) > 1 and bases[0].__name__ == "FSDPModule"
    return str((bases[1] if sharded else kind).__name__)


def _wrapped(module: Any) -> Any:
    """What a wrapper wraps; None for what is no wrapper."""
    children = list(module.named_children())
    return children[0][1] if len(children) == 1 and children[0][0] in _WRAPPED else None


def _tree(module: Any, path: str, seen: set[int]) -> Iterator[tuple[str | None, Any]]:
    """Each module in it with its path, that of a wrapper None; of one that is there twice the first."""
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
