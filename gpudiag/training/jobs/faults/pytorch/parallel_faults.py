"""Implement divided jobs of the selftest, in which several processes share a model, and faults of such jobs."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gpudiag.model.run import ParallelLayout
from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.parallel_layouts import selftest_layout, slow_position
from gpudiag.training.jobs.faults.pytorch.parallel_trainer import LAYERS, MS_PER_TOKEN, ParallelTrainer, divided_gpt
from gpudiag.training.jobs.parallel.experts import ExpertLayer


class DividedJob(Fault[ParallelTrainer]):
    """A job whose processes share the work of a model. Subclasses define how the job differs between on and off."""

    kind: ClassVar[str]
    layers: ClassVar[int] = LAYERS

    def prepare(self) -> None:
        """Build the job's model and batch."""
        trainer = self.trainer
        self.layout = selftest_layout(self.kind, trainer.place.world_size)
        self.network = divided_gpt(self.layout, trainer.device, layers=self.layers)
        self.batch = trainer.tokens(self.network)

    def rest(self) -> None:
        """Train the default job, in which each process trains its own model."""
        self.trainer.use(self.trainer.alone, self.trainer.tokens(self.trainer.alone))

    def close(self) -> None:
        """Delete the job's model."""
        del self.network

    @property
    def share(self) -> float:
        """Size of the fault as a share of the clean step time, or in `HotExpert` as a share of all tokens."""
        return self.amount_ms / self.trainer.clean_ms


class PipelineJob(DividedJob):
    """A pipeline of equal stages (on), or the same pipeline with twice as many microbatches of half the size (off)."""

    kind = "pipeline"

    def prepare(self) -> None:
        """Build both pipelines."""
        super().prepare()
        finer = msgspec.structs.replace(self.layout, microbatches=2 * self.layout.microbatches)
        self._finer = divided_gpt(finer, self.trainer.device)

    def switch(self, *, on: bool) -> None:
        """Train the pipeline with large (on) or small (off) microbatches."""
        self.trainer.use(self.network if on else self._finer, self.batch)

    def close(self) -> None:
        """Delete both pipelines."""
        super().close()
        del self._finer


class TensorAndDataParallel(DividedJob):
    """Use tensor parallelism in pairs of processes and FSDP2 over the pairs (on), or neither (off).

    Each process does the same work in both cases, so the difference is the cost of communication.
    """

    kind = "tensor-and-data-parallel"
    layers = 2  # few, because each layer communicates a dozen times per step

    def prepare(self) -> None:
        """Build the divided job, and the job in which each process has a whole model."""
        super().prepare()
        layers = sum(len(part.blocks) for part in self.network.parts)
        alone = ParallelLayout(microbatches=self.network.layout.microbatches)
        self._alone = divided_gpt(alone, self.trainer.device, layers=layers)
        self._alone_batch = self.trainer.tokens(self._alone)

    def switch(self, *, on: bool) -> None:
        """Train the divided job (on), or one model per process (off)."""
        if on:
            self.trainer.use(self.network, self.batch)
        else:
            self.trainer.use(self._alone, self._alone_batch)

    def close(self) -> None:
        """Delete both jobs."""
        super().close()
        del self._alone


class UnevenStages(DividedJob):
    """Let the layers of one pipeline stage take longer (on), or let all layers of all stages take equally long (off).

    The sum over all stages is the same in both cases, as if work had been moved to the slow stage.
    """

    kind = "uneven-stages"

    def switch(self, *, on: bool) -> None:
        """Set the artificial durations of this stage's layers."""
        stages = self.network.layout.pp
        # Without the fault, each stage takes an equal part of the extra time.
        times = (1.0 + self.share if self.affected else 1.0) if on else (stages + self.share) / stages
        for block in self.network.parts[0].blocks:
            block.ms_per_token = times * MS_PER_TOKEN  # type: ignore[assignment]  # modules have any attribute
        self.trainer.use(self.network, self.batch)


class LongSequences(DividedJob):
    """Give one replica longer sequences (on), or all replicas sequences of equal length (off)."""

    kind = "long-sequences"

    def switch(self, *, on: bool) -> None:
        """Train on long sequences (if on and this rank is affected), or on sequences of usual length."""
        factor = 1.0 + self.share if on and self.affected else 1.0
        self.trainer.use(self.network, self.trainer.tokens(self.network, factor))


class HotExpert(DividedJob):
    """Assign `share` of all tokens to one expert, and the other tokens to all experts in turn."""

    kind = "hot-expert"

    def switch(self, *, on: bool) -> None:
        """Set the share of tokens that the hot expert gets in all layers; 0 if off."""
        for part in self.network.parts:
            for module in part.modules():
                if isinstance(module, ExpertLayer):
                    module.hot = slow_position(self.kind, self.trainer.place.world_size)
                    module.hot_share = self.share if on else 0.0
        self.trainer.use(self.network, self.batch)


PARALLEL_KINDS: dict[str, type[Fault[ParallelTrainer]]] = {
    job.kind: job for job in (PipelineJob, TensorAndDataParallel, UnevenStages, LongSequences, HotExpert)
}
