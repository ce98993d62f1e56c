"""Define the table of operations of a pipeline-parallel job: one row per operation of a worker in a step."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

FORWARD = "forward-compute"
BACKWARD = "backward-compute"
FORWARD_SEND = "forward-send"
FORWARD_RECEIVE = "forward-recv"
BACKWARD_SEND = "backward-send"
BACKWARD_RECEIVE = "backward-recv"
PARAMETERS_GATHER = "params-all-gather"
GRADIENTS_SCATTER = "grads-reduce-scatter"
SEPARATE_GRADIENTS = "separate-grads-all-reduce"
LAYERNORM_GRADIENTS = "layernorm-grads-all-reduce"
EMBEDDING_GRADIENTS = "embedding-grads-all-reduce"
CLIP = "optimizer-clip-main-grad"
OPTIMIZER = "optimizer"
GARBAGE_COLLECTION = "gc"

#: Every kind of operation that is read; `OperationTable.kind` has indices into it.
OPERATION_KINDS = (
    FORWARD,
    BACKWARD,
    FORWARD_SEND,
    FORWARD_RECEIVE,
    BACKWARD_SEND,
    BACKWARD_RECEIVE,
    PARAMETERS_GATHER,
    GRADIENTS_SCATTER,
    SEPARATE_GRADIENTS,
    LAYERNORM_GRADIENTS,
    EMBEDDING_GRADIENTS,
    CLIP,
    OPTIMIZER,
    GARBAGE_COLLECTION,
)
KIND_CODES = {kind: code for code, kind in enumerate(OPERATION_KINDS)}
#: Kinds that compute a pass, and kinds that communicate nothing.
COMPUTE_KINDS = (FORWARD, BACKWARD)
LOCAL_KINDS = (FORWARD, BACKWARD, OPTIMIZER, GARBAGE_COLLECTION)
SEND_KINDS = (FORWARD_SEND, BACKWARD_SEND)
RECEIVE_KINDS = (FORWARD_RECEIVE, BACKWARD_RECEIVE)
#: Collectives among the data-parallel workers of one stage.
DATA_PARALLEL_KINDS = (PARAMETERS_GATHER, GRADIENTS_SCATTER, SEPARATE_GRADIENTS)

Integers = NDArray[np.int64]


class OperationTable(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of one job. All columns have the same length; the order of rows has no meaning.

    Attributes:
        source: path of the file, printable.
        step, data_rank, stage: training step, data-parallel rank and pipeline stage of the worker.
        rank: global rank of the worker's first process.
        kind: index into `OPERATION_KINDS`.
        start_ns, duration_ns: time of the operation; starts are comparable within a step only.
        microbatch: number of the microbatch of a forward or backward computation; negative for other kinds.
        chunk: position of the part of the model in the whole model (virtual stage); negative if unknown.
        unknown_kinds: names of other kinds in the file, which are not read; printable.
    """

    source: str
    step: Integers
    data_rank: Integers
    stage: Integers
    rank: Integers
    kind: Integers
    start_ns: Integers
    duration_ns: Integers
    microbatch: Integers
    chunk: Integers
    unknown_kinds: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.step)
