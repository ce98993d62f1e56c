"""What the selftest knows of a fault or a job: what is done, how large, and what the diagnosis should say of it."""

from __future__ import annotations

import msgspec

from gpudiag.model.benchmarks.selftest import ExpectedFinding


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        name: as on the command line.
        summary: what is done to the job.
        kind: which fault the training processes put in.
        code: the finding that should come first; None for a clean run.
        causes: what its cause may be called; empty where none is claimed.
        cpu_causes: the same on CPU processes, where the training thread is host and device at once.
        gpu_amount, cpu_amount: its size as a share of the clean step; None where it makes no sense on that device.
        cpu_amount_in: the same on CPUs in a framework, by its name, where it makes sense in that one only.
        one_rank: one rank has it and not all.
        several: it needs two devices or more.
        in_pairs: it needs an even number of them.
        marked: the loader is marked through `gpudiag.profile`.
        p2p: False where the whole launch goes without peer access.
        first_rank: rank 0 alone has it, as in loops where it does what is done once.
        or_else: other findings that are as right, each with its causes.
        job: a whole job of its own, whose own exchange and launching are measured.
        workloads: those into which it can be put, or is for the sake of time; empty for all.
    """

    name: str
    summary: str
    kind: str
    code: str | None
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

    @property
    def well_built(self) -> bool:
        """A job in which nothing is wrong."""
        return self.job and self.code is None

    def fits(self, workload: str) -> bool:
        """Whether it is put into the training of this workload."""
        return not self.workloads or workload in self.workloads

    def amount(self, device: str, framework: str) -> float | None:
        """Its size on this device, as a share of the clean step; None where it makes no sense."""
        return self.gpu_amount if device == "cuda" else self.cpu_amount_in.get(framework, self.cpu_amount)

    def expected(self, device: str, ranks: tuple[int, ...], world_size: int) -> ExpectedFinding:
        """What should be found where these ranks have the fault (none named: all)."""
        causes = self.causes if device == "cuda" or self.cpu_causes is None else self.cpu_causes
        everyone = tuple(range(world_size)) if self.code is not None else ()
        return ExpectedFinding(code=self.code, ranks=ranks or everyone, causes=causes, or_else=self.or_else)
