"""Describe the difference between two runs in words: verdict, runs, step times.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from collections import Counter

from rich.text import Text

from gpudiag.model.diff import OTHER_KERNELS, Cause, ComparedRun, Diff, Outcome, PartChange, StepChange, StepKind
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.kernel_names import kernel_label, shorten_middle
from gpudiag.report.palette import LABELS

#: First word of the verdict and the style of this word, by outcome.
_VERDICT: dict[Outcome, tuple[str, str]] = {
    "slower": ("SLOWER", "bold red"),
    "faster": ("FASTER", "bold green"),
    "no-difference": ("NO DIFFERENCE", "bold green"),
    "cannot-tell": ("CANNOT TELL", "bold yellow"),
}
_KINDS: dict[StepKind, str] = {
    "profiled": "while profiling",
    "unprofiled": "without profiling",
    "corrected": "estimated without profiling",
}
_IDLE_PARTS = {"unmarked-input": "before a step's first op", "queued": "between queued ops"}
#: Words added to a pause before a step's first op. If data loading has no marks, a trace shows only this pause.
_UNMARKED = ", possibly data loading without marks"
_SEPARATOR = " · "
_LONGEST = 60  # characters of a name


def signed(value_ms: float, *, beside: float | None = None) -> str:
    """Return a difference with its sign and the decimals of `beside`; 0 and `<0.01` have no sign.

    The minus is a hyphen, because every terminal has this character.

    >>> signed(35.62), signed(-0.071), signed(0.0), signed(-0.2, beside=35.0)
    ('+35.6', '-0.07', '0.00', '-0.2')
    """
    text = figures.milliseconds(abs(value_ms), beside=beside)
    if "<" in text or not any(digit in text for digit in "123456789"):
        return text
    return f"{'+' if value_ms > 0 else '-'}{text}"


def signed_percent(value: float | None) -> str:
    """Return a relative change: in whole percent from 10 % on, with one decimal below.

    >>> signed_percent(114.2), signed_percent(-3.25), signed_percent(None)
    ('+114 %', '-3.2 %', '—')
    """
    if value is None:
        return figures.UNKNOWN
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{figures.thousands(abs(value), int(abs(value) < 10))} %"


def verdict(diff: Diff) -> list[Text]:
    """Return a line with the outcome, a warning if the runs do different work, and a line with the main cause.

    The outcome may be that of unprofiled steps, but the cause is known for profiled steps only. If profiled steps
    changed in the opposite direction to the outcome, a line states this instead of the cause.
    """
    step = diff.step(diff.judged)
    word, style = _VERDICT[diff.outcome]
    line = Text(word, style=style).append("  ", style="default not bold")
    line.append(_statement(diff, step), style="default bold")
    lines = [line, *_unlike(diff)]
    if diff.outcome == "no-difference" or diff.cause is None:
        return lines
    profiled = diff.step("profiled")
    if profiled.difference_ms * step.difference_ms < 0:
        return [
            *lines,
            Text(
                "Profiled steps changed in the opposite direction, so the tables below do not explain the difference."
            ),
        ]
    return [*lines, Text(_because(diff.cause))]


def _unlike(diff: Diff) -> list[Text]:
    """Return a warning if the runs certainly or probably do different work."""
    for difference in diff.run_differences:
        if difference.what == OTHER_KERNELS or not difference.same_work:
            values = f"{_short(difference.before)} → {_short(difference.after)}"
            return [Text(f"The runs do different work: {difference.what} {values}.", style="yellow")]
    return []


def _statement(diff: Diff, step: StepChange) -> str:
    """Return a sentence that states the difference of the mean step times, and whether the difference exceeds noise.

    Without a difference, it continues the outcome: "NO DIFFERENCE beyond noise: …".
    """
    kind = "" if step.kind == "profiled" else f", {_KINDS[step.kind]}"
    if diff.outcome == "no-difference":
        return f"beyond noise: B's step is {signed(step.difference_ms)} ms, {interval(step)}{kind}."
    if step.difference_ms == 0:
        return f"The mean steps are the same{kind}, but their noise is unknown: {step.reason}."
    size = figures.milliseconds(abs(step.difference_ms))
    longer = "longer" if step.difference_ms >= 0 else "less"
    text = f"Steps of B take {size} ms {longer} than those of A ({signed_percent(step.percent)}){kind}"
    if diff.outcome == "cannot-tell":
        return f"{text}; it is unknown whether this exceeds noise: {step.reason}."
    return f"{text}."


def _because(cause: Cause) -> str:
    """Return a sentence about the bucket that changed most, on which ranks it changed, and the waits of other ranks."""
    more = "more" if cause.difference_ms > 0 else "less"
    size = figures.milliseconds(abs(cause.difference_ms))
    part = ""
    if cause.part is not None:
        unmarked = _UNMARKED if (cause.part.bucket, cause.part.name) == ("idle", "unmarked-input") else ""
        part = f" ({part_label(cause.part, _LONGEST)}{unmarked})"
    bucket = LABELS[cause.bucket]
    if not cause.ranks:
        return f"Mostly {bucket}{part}: {size} ms {more}, averaged over all devices."
    ranks = figures.ranks(cause.ranks)
    verb = "has" if len(cause.ranks) == 1 else "have"
    text = f"Mostly because {ranks} {verb} {size} ms {more} {bucket}{part}"
    if cause.waiting_ms is None:
        return f"{text}."
    longer = "longer" if cause.waiting_ms > 0 else "less"
    return f"{text}, and others wait {figures.milliseconds(abs(cause.waiting_ms))} ms {longer} for it."


def interval(step: StepChange) -> str:
    """Return the 95 % interval of the difference in words; "" if it is unknown."""
    if step.ci95_ms is None:
        return ""
    beside = max(abs(end) for end in step.ci95_ms)
    low, high = (signed(end, beside=beside) for end in step.ci95_ms)
    return f"95 % interval {low} to {high} ms"


def header(diff: Diff, width: int) -> list[Text]:
    """Return a line for each run, for each kind of step time that both runs have, and for samples/s if both have it."""
    lines = [_run_line("A", diff.before, width), _run_line("B", diff.after, width)]
    for step in diff.steps:
        times = f"{figures.milliseconds(step.before_ms)} → {figures.milliseconds(step.after_ms)} ms"
        line = Text(f"Step {_KINDS[step.kind]} ").append(times, style="bold")
        line.append(f", {signed(step.difference_ms)} ms ({signed_percent(step.percent)})")
        line.append(f"{_SEPARATOR}{interval(step)}" if step.ci95_ms is not None else "")
        lines.append(line)
    rates = diff.before.samples_per_s, diff.after.samples_per_s
    if rates[0] is not None and rates[1] is not None:
        lines.append(Text(f"Samples/s {figures.throughput(rates[0])} → {figures.throughput(rates[1])}"))
    return lines


def _run_line(letter: str, run: ComparedRun, width: int) -> Text:
    """Return path, workload, devices (up to three models) and steps of one run. The path is cut to fit in `width`."""
    # 6: the letter before the path, and the separator after it.
    parts = [shorten_middle(one_line(path), min(_LONGEST, width - 6)) for path in run.paths[:1]]
    parts += [f"and {len(run.paths) - 1} more"] if len(run.paths) > 1 else []
    parts += [_short(word) for word in (run.workload, run.strategy) if word]
    names = Counter(_short(name) for name in run.devices)
    parts.append(" + ".join(f"{count} {figures.TIMES} {name}" for name, count in names.most_common(3)))
    parts += [f"batch {run.batch_size_per_device} per device"] if run.batch_size_per_device else []
    parts.append(f"{run.steps_analysed} steps")
    return Text(f"{letter}  ", style="bold").append(_SEPARATOR.join(parts), style="default not bold")


def part_label(part: PartChange, width: int, *, groups: bool = False) -> str:
    """Return a part's name in at most `width` characters, with size and, if `groups`, process group of a collective."""
    if part.bucket.startswith("communication_"):
        size = f" {figures.size(part.size_bytes)}" if part.size_bytes is not None else ""
        group = f" (group {shorten_middle(one_line(part.group), 16)})" if groups and part.group else ""
        return shorten_middle(f"{one_line(part.name)}{size}{group}", width)
    if part.bucket == "idle":
        return shorten_middle(_IDLE_PARTS.get(part.name, one_line(part.name)), width)
    return kernel_label(part.name, width)


def _short(text: str) -> str:
    return shorten_middle(one_line(text), _LONGEST)
