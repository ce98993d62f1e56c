"""Interpret names of NVTX ranges: operators of PyTorch's emit_nvtx, libraries' ranges, and users' ranges.

`torch.autograd.profiler.emit_nvtx` writes operators and `record_function` ranges with their properties appended:

    aten::mm, seq = 12, op_id = 34, sizes = [[2, 3], [3, 4]]
    Optimizer.step#AdamW.step
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from gpudiag.model.event import EventKind, Role
from gpudiag.trace.readers.kineto.kinds_and_times import kind_of_operator

#: Properties that emit_nvtx appends to a name.
_PROPERTIES = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
#: Number of texts without properties whose meaning is cached.
_MOST_CACHED = 1 << 16
#: Names with a namespace (`aten::mm`): operators, and functions of C++ libraries.
_NAMESPACED = re.compile(r"[A-Za-z_]\w*::\S")
#: Domain of NCCL's ranges, which are named like its functions (`ncclAllReduce`).
_NCCL = "NCCL"
_NCCL_FUNCTION = re.compile(r"nccl(?=[A-Z])")
#: Domain of gpudiag's ranges. Other profilers record these ranges with names that begin with `gpudiag.`.
_GPUDIAG = "gpudiag"
#: Domains, in lower case, of libraries whose ranges span calls of the library.
_LIBRARIES = re.compile(
    r"cublas|cudnn|cusolver|cusparse|cufft|cutensor|cudss|nvshmem|ucx|ucc|cub$|thrust|cccl|libcudf|libkvikio|rmm|dali|nvjpeg"
    r"|tsl$|openmpi|mpi$|nvcomp"
)
#: Users' names of waits for data.
_INPUT = re.compile(
    r"(?:.*[^a-z])?(?:(?:load|get|next|fetch|wait_for)[ _-]?(?:data|batch|inputs?)"
    r"|data[ _-]?(?:load(?:er|ing)?|fetch(?:ing)?|wait)"
    r"|batch[ _-]?generator|input[ _-]?wait|waiting[ _-]for[ _-]data)$",
    re.IGNORECASE,
)
#: Users' names of optimizer updates.
_OPTIMIZER = re.compile(r"(?:opt|optim|optimizer)(?:[._ -]?step)?(?:\(\))?$", re.IGNORECASE)
#: Names of steps with a number, such as `step 3`, `Iteration: 12`, `train_step_5`, `[step=7]`, `ProfilerStep#5`.
_STEP = re.compile(
    r"(?:.*[^a-z0-9])?(?:train(?:ing)?|global)?[ _-]?(?:step|iter|iteration|batch)[ _:=#-]{0,3}"
    r"(\d{1,15})(?!\.?\d)(?:\D.{0,40})?$",
    re.IGNORECASE,
)
#: Words in the names of numbered parts of a step.
_PART = re.compile(r"micro|sub|inner|worker|layer|stage|chunk|token|denois|diffusion", re.IGNORECASE)
#: Frameworks by names that only they use. PyTorch comes first, because programs under PyTorch use XLA too.
_FRAMEWORKS = (
    ("pytorch", re.compile(r"(?:aten|torch|c10|c10d|autograd)::|.*\bat::native::|Optimizer\.step#|ProfilerStep[#*]")),
    ("jax", re.compile(r"XlaModule:.*hlo_module=p?jit_")),
    ("tensorflow", re.compile(r"(?:void )?tensorflow::|tf_data|.*#hlo_module=cluster_")),
)


class NvtxRange(msgspec.Struct, frozen=True):
    """The name and the kind of a range."""

    name: str
    kind: EventKind


def interpret(text: str, domain: str) -> NvtxRange:
    """Return a range's name without properties, and its kind. `domain` is the name of its NVTX domain; "" for none.

    >>> interpret("aten::mm, seq = 12, sizes = [[2, 3], [3, 4]]", "")
    NvtxRange(name='aten::mm', kind=<EventKind.OPERATOR: 0>)
    >>> interpret("ncclAllReduce", "NCCL")
    NvtxRange(name='nccl:AllReduce', kind=<EventKind.OPERATOR: 0>)
    >>> interpret("step 3", "")
    NvtxRange(name='step 3', kind=<EventKind.ANNOTATION: 1>)
    """
    properties = _PROPERTIES.search(text) if ", " in text else None
    return _interpret(text[: properties.start()] if properties else text, domain, has_properties=properties is not None)


@lru_cache(_MOST_CACHED)
def _interpret(text: str, domain: str, *, has_properties: bool) -> NvtxRange:
    """Do the same as `interpret` for a text without its properties; `has_properties` is whether it had properties.

    A name without properties and without a namespace belongs to a user's range, not to an operator.
    """
    if domain == _NCCL:
        return NvtxRange(_NCCL_FUNCTION.sub("nccl:", text, count=1), EventKind.OPERATOR)
    if domain == _GPUDIAG:
        return NvtxRange(f"gpudiag.{text}", EventKind.ANNOTATION)
    if _LIBRARIES.match(domain.lower()):
        return NvtxRange(text, EventKind.OPERATOR)
    kind = kind_of_operator(text)
    if not has_properties and kind == EventKind.OPERATOR and not _NAMESPACED.match(text):
        kind = EventKind.ANNOTATION
    return NvtxRange(text, kind)


def is_enqueue(name: str) -> bool:
    """Return whether a range of a library enqueues a collective."""
    return name.startswith("nccl:")


def user_role(name: str) -> Role:
    """Return the role of a user's range, judged by usual names.

    >>> user_role("load_batch"), user_role("data loading"), user_role("optimizer_step"), user_role("forward")
    (<Role.INPUT: 8>, <Role.INPUT: 8>, <Role.OPTIMIZER: 10>, <Role.OTHER: 0>)
    """
    if _INPUT.match(name):
        return Role.INPUT
    return Role.OPTIMIZER if _OPTIMIZER.match(name) else Role.OTHER


def numbered_step(name: str) -> tuple[str, int] | None:
    """Return (name before the number, number of the step) of a range; None if the name states no step.

    >>> numbered_step("step 3"), numbered_step("Iteration: 12"), numbered_step("train_step#5 of 10")
    (('step ', 3), ('Iteration: ', 12), ('train_step#', 5))
    >>> numbered_step("microbatch 3"), numbered_step("step"), numbered_step("layer 3"), numbered_step("stepper 3")
    (None, None, None, None)
    """
    match = None if _PART.search(name) else _STEP.match(name)
    return (name[: match.start(1)], int(match[1])) if match else None


#: Frameworks whose processes are one rank each, whatever the number of devices.
ONE_RANK_PER_PROCESS = frozenset({"pytorch"})


def framework_of(names: tuple[str, ...]) -> str:
    """Return the framework that events of these names show; `unknown` if none does."""
    for framework, pattern in _FRAMEWORKS:
        if any(pattern.match(name) for name in names):
            return framework
    return "unknown"
