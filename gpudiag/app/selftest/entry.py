"""CatalogueEntry: a fault or job of the selftest, its size, and the right diagnosis."""

from __future__ import annotations

import msgspec

from gpudiag.model.benchmarks.selftest import ExpectedFinding


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A fault or job.

    Attributes:
        name: the name on the command line.
        summary: the change to the job.
        injected: the kind of fault that the training processes inject; empty if it is `name`.
        code: the code of the finding that should come first; None for a job without a fault.
        causes: causes that this finding may name; empty for any.
        cpu_causes: `causes` on CPU processes, whose training thread is host and device at once; None if the same.
        gpu_amount, cpu_amount: size as a share of the clean step, unless a comment on the entry states another meaning;
            None if the fault has no effect on that device.
        cpu_amount_in: size on CPUs by framework, for faults that have an effect in some frameworks only.
        one_rank: only one rank, not rank 0, has the fault.
        first_rank: only rank 0 has the fault.
        several: the fault needs two devices or more.
        in_pairs: the fault needs an even number of devices.
        marked: True if `gpudiag.profile` marks the loader.
        p2p: False to launch without peer access.
        or_else: other codes that the first finding may have: code → causes that are right, empty for any.
        job: True for a job that is trained instead of the clean job; its communication and launches are measured too.
        workloads: workloads that may have the fault; empty for all.
        divided: True for a small GPT that the processes divide, and that is trained in a separate launch.
    """

    name: str
    summary: str
    code: str | None
    injected: str = ""
    causes: tuple[str, ...] = ()
    cpu_causes: tuple[str, ...] | None = None
    gpu_amount: float | None = None
    cpu_amount: float | None = None
    cpu_amount_in: dict[str, float] = {}
    one_rank: bool = False
    several: bool = False
    in_pairs: bool = False
    marked: bool = False
    p2p: bool = True
    first_rank: bool = False
    or_else: dict[str, tuple[str, ...]] = {}
    job: bool = False
    workloads: tuple[str, ...] = ()
    divided: bool = False

    @property
    def kind(self) -> str:
        """The fault that the training processes inject."""
        return self.injected or self.name

    @property
    def well_built(self) -> bool:
        """True for a job without a fault."""
        return self.job and self.code is None

    def fits(self, workload: str) -> bool:
        """Return whether this workload may have the fault."""
        return not self.workloads or workload in self.workloads

    def amount(self, device: str, framework: str) -> float | None:
        """Return the fault's size (see `gpu_amount`); None if it has no effect on this device."""
        return self.gpu_amount if device == "cuda" else self.cpu_amount_in.get(framework, self.cpu_amount)

    def expected(self, device: str, ranks: tuple[int, ...], world_size: int) -> ExpectedFinding:
        """Return the right diagnosis of a run in which these ranks (empty for all) have the fault."""
        causes = self.causes if device == "cuda" or self.cpu_causes is None else self.cpu_causes
        all_ranks = tuple(range(world_size)) if self.code is not None else ()
        return ExpectedFinding(code=self.code, ranks=ranks or all_ranks, causes=causes, or_else=self.or_else)
