"""Jobs whose processes divide a model, clean and with faults. On CPUs each layer waits instead of computing."""

from __future__ import annotations

from gpudiag.app.selftest.entry import CatalogueEntry

#: Codes of findings about the cost of dividing a model. Such findings are right in addition to the finding of a fault.
_COMMUNICATION: dict[str, tuple[str, ...]] = {"communication-bound": ()}
_PIPELINE = _COMMUNICATION | {"pipeline-bubble": ()}


def _fault(
    name: str, summary: str, cause: str | None, amount: float, beside: dict[str, tuple[str, ...]]
) -> CatalogueEntry:
    """Return a divided job that has a straggler of this cause; without a cause, it has a pipeline bubble.

    `amount` is explained in `DIVIDED`. `beside` has further right findings: code → causes, empty for any.
    """
    return CatalogueEntry(
        name=name,
        summary=summary,
        code="straggler" if cause else "pipeline-bubble",
        causes=(cause,) if cause else (),
        or_else=beside,
        gpu_amount=amount,
        cpu_amount=amount,
        several=True,
        in_pairs=True,
        divided=True,
    )


DIVIDED = (
    _fault("pipeline", "equal pipeline stages (1F1B) with as many microbatches as stages", None, 1.0, _COMMUNICATION),
    # The communication of this job is measured, so that a finding about it is no false alarm.
    CatalogueEntry(
        name="tensor-and-data-parallel",
        summary="well built: matrices are split over pairs of ranks (DTensor), and FSDP2",
        code=None,
        gpu_amount=0.0,
        cpu_amount=0.0,
        several=True,
        in_pairs=True,
        job=True,
        divided=True,
    ),
    # Amounts of the next three: (additional layers) / (usual layers), (additional tokens) / (usual tokens), and the
    # share of tokens that one expert gets.
    _fault("uneven-stages", "one pipeline stage computes twice as long as the others", "stage", 1.0, _PIPELINE),
    _fault("long-sequences", "one replica has longer sequences than the others", "sequence", 1.0, _COMMUNICATION),
    _fault("hot-expert", "the router sends most tokens to one expert", "experts", 0.5, _COMMUNICATION),
)
