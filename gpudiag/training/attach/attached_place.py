"""Where a process of the command stands in the job."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

from gpudiag.training.session.place import Place, this_place

#: Who starts processes numbers them in these variables: torchrun, Open MPI, MPICH, Slurm.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def attached_place() -> Place:
    """Return the place of this process as it is now: a process group may be made later.

    Ranks without a process group train each for itself, in a world of one, whatever their number.
    """
    place = this_place()
    if _has_process_group():
        return place
    numbers = (os.environ.get(variable, "") for variable in _RANKS)
    rank = next((int(number) for number in numbers if number.isdecimal()), 0)
    return dataclasses.replace(place, rank=rank, world_size=1, nodes=1)


def _has_process_group() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
