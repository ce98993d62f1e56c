"""`gpudiag bandwidth`: what the machine's links, memories and transports really carry."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.options import Json, Width
from gpudiag.errors import HardwareMissingError, UsageError, WorkerFailedError
from gpudiag.workloads.registry import training_entry

if TYPE_CHECKING:
    from gpudiag.model.facts import Facts
    from gpudiag.model.like import ModelBuckets

EXAMPLES = (
    ("gpudiag bandwidth", "every link, memory and transport; about 20 s on 4 GPUs"),
    ("gpudiag bandwidth --quick", "the essential paths, in about 5 s"),
    ("gpudiag bandwidth --save facts.json --html bandwidth.html", "keep the figures, and a page to show"),
    ("gpudiag bandwidth --quick --like vgg16", "and each transport on the buckets of VGG-16's own gradients"),
    ("gpudiag bandwidth --from facts.json", "show another machine's figures, here without a GPU"),
)


def bandwidth(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Measure only the essential paths, in about 5 s.")] = False,
    like: Annotated[
        str | None,
        typer.Option(metavar="WORKLOAD", help="Also measure each transport's all-reduce on this model's own buckets."),
    ] = None,
    as_json: Json = False,
    require_gpu: Annotated[
        bool, typer.Option("--require-gpu", help="Exit with code 3, measuring nothing, when there is no NVIDIA GPU.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Also write the facts to this file, as JSON.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Show the figures saved in this file instead of measuring."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page that needs nothing but itself.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="End a probe that loads or measures for longer than this.")
    ] = 60.0,
    width: Width = None,
) -> None:
    """Measure what this machine's links really carry.

    Copies between host and GPUs, between GPUs, and within them, pinned and pageable, one way and both ways, one GPU
    and all at once; latencies; host memory; all-reduce by every transport at hand. Every figure stands beside what the
    hardware allows, and the data of every path is verified. Without a GPU, host memory and an all-reduce between
    processes are measured.
    """
    import msgspec

    from gpudiag.diagnosis.hardware import examine_facts
    from gpudiag.probing.facts_file import encode_facts, load_facts, save_facts
    from gpudiag.probing.machine import failed_probes

    if like is not None:
        training_entry(like, "--like")  # before anything is measured
    if source is not None:
        for option, given in (("--quick", quick), ("--like", like is not None)):
            if given:
                raise UsageError(f"{option} measures and --from does not", "Give one of them.")
        facts = load_facts(source)
        failed: tuple[str, ...] = ()
    else:
        facts = _measure(quick=quick, timeout_s=timeout, require_gpu=require_gpu)
        failed = failed_probes(facts)
    if require_gpu and not facts.gpus:
        raise _no_gpu(facts)
    buckets = None
    if like is not None:
        buckets = _measure_like(like, timeout_s=timeout)
        facts = msgspec.structs.replace(
            facts,
            collectives=(*facts.collectives, *buckets.collectives),
            probes={**facts.probes, "like": {"workload": buckets.workload, "bucket_bytes": list(buckets.bucket_bytes)}},
        )
    facts = msgspec.structs.replace(facts, findings=examine_facts(facts))
    if save is not None:
        save_facts(facts, save)
    if html is not None:
        from gpudiag.reporting.facts_html import write_page

        write_page(facts, html)
    if as_json:
        sys.stdout.write(encode_facts(facts).decode())
    else:
        _draw(facts, buckets, width=width)
    sys.stdout.flush()
    if failed:
        raise WorkerFailedError(
            f"{len(failed)} of the probes failed: {', '.join(failed)}",
            "What was measured is shown; the reasons are under 'Not measured' and in the JSON's `skipped`.",
        )


def _draw(facts: "Facts", buckets: "ModelBuckets | None", *, width: int | None) -> None:
    from gpudiag.reporting.console import report_console
    from gpudiag.reporting.facts_bandwidth import render_bandwidth

    console = report_console(width=width)
    render_bandwidth(facts, console)
    if buckets is not None:
        from gpudiag.reporting.like_table import render_like

        render_like(buckets, console)


def _measure(*, quick: bool, timeout_s: float, require_gpu: bool) -> "Facts":
    from gpudiag.commands.probe_progress import ProbeProgress
    from gpudiag.probing.cache import keep_measurements
    from gpudiag.probing.inventory import gather_inventory
    from gpudiag.probing.machine import failed_probes, probe_machine

    facts = gather_inventory()
    if require_gpu and not facts.gpus:
        raise _no_gpu(facts)
    with ProbeProgress() as progress:
        measured = probe_machine(facts, quick=quick, timeout_s=timeout_s, on_progress=progress)
    if not failed_probes(measured):
        keep_measurements(measured)  # for `gpudiag profile`, which then need not measure
    return measured


def _measure_like(workload: str, *, timeout_s: float) -> "ModelBuckets":
    from gpudiag.commands.contest_progress import ContestProgress
    from gpudiag.recommendation.like import measure_like

    with ContestProgress() as progress:
        progress.say(f"all-reduces on the buckets of {workload}")
        return measure_like(workload, progress.heard, timeout_s=timeout_s)


def _no_gpu(facts: "Facts") -> HardwareMissingError:
    return HardwareMissingError(
        f"no NVIDIA GPU: {facts.host.reasons.get('gpus', 'none is listed')}",
        "Leave --require-gpu out to measure the host alone.",
    )
