"""Create the process groups of a parallel job."""

from __future__ import annotations

from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gpudiag.model.run import ParallelLayout

#: Dimensions along which processes have different tokens, but the same layers except for experts.
_REPLICAS = ("dp", "ep", "cp")


class ParallelMesh:
    """The mesh of all processes. In traces PyTorch calls the mesh's process groups `mesh_pp`, `mesh_dp` and so on.

    Attributes:
        mesh: mesh of the dimensions with several processes, in the layout's order; None if the job has one process.
        replicas: the processes that average the gradients of layers without experts; None for a single process.
        expert_replicas: the processes that average an expert's gradients; None for a single process or without experts.
        batch_index: number of this process's batch. Processes that train on one batch together have the same number.
    """

    def __init__(self, device_type: str, layout: ParallelLayout) -> None:
        sizes = {name: size for name, size in layout.sizes.items() if size > 1}
        self.mesh = init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)) if sizes else None
        self.replicas = self._flat(*_REPLICAS)
        self.expert_replicas = self._flat("dp", "cp") if layout.ep > 1 else None
        self.batch_index = self.coordinate("dp") * layout.ep + self.coordinate("ep")

    def dimension(self, name: str) -> DeviceMesh | None:
        """Return the mesh of this process's group along a dimension; None if the group has no other process."""
        has_dimension = self.mesh is not None and name in (self.mesh.mesh_dim_names or ())
        return self.mesh[name] if self.mesh is not None and has_dimension else None

    def _flat(self, *names: str) -> DeviceMesh | None:
        """Return one mesh over several dimensions of this process's group; None if all these dimensions have size 1."""
        names = tuple(name for name in names if self.dimension(name) is not None)
        if self.mesh is None or not names:
            return None
        return self.mesh[names]._flatten("_".join(names)) if len(names) > 1 else self.mesh[names[0]]  # noqa: SLF001

    def group(self, name: str) -> dist.ProcessGroup | None:
        """Return this process's group along a dimension; None if the group has no other process."""
        mesh = self.dimension(name)
        return None if mesh is None else mesh.get_group()

    def coordinate(self, name: str) -> int:
        """Return this process's position along a dimension."""
        mesh = self.dimension(name)
        return 0 if mesh is None else mesh.get_local_rank()
