"""Judge whether the diagnosis of a job is right."""

from __future__ import annotations

import msgspec

from gpudiag.model.analysis import Analysis, Finding
from tests.analysis.diagnosis.random_jobs.truth import Cause, Truth

#: Largest error of a right amount: a share of the true cost, or ms.
AMOUNT_SHARE, AMOUNT_MS = 0.15, 1.0
#: Minimum share of the step at which a cause is worth action, and a margin. If the cost of a cause is within the margin
#: of the minimum, both reporting and omitting the cause are right.
NOTABLE, MARGIN = 0.05, 0.01
#: Causes are equal if the relative difference of their costs is at most this.
_TIE = 0.10
#: A further finding is a false alarm unless removing its cause saves at least this share of the step.
_CONFIRMED = 0.04


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The expected causes, the first reported cause, and the errors of the diagnosis.

    Attributes:
        expected: names of the causes that may come first; ("none",) if no finding is expected.
        got: code and cause of the first finding, or "none".
        why: the errors; empty if the diagnosis is right.
        missed: names of waste that costs clearly enough to be reported, but whose code no finding has.
        loader_as_launching: whether a loader should come first but `launch-bound` does.
        beside: work that could be removed instead of the most expensive waste → whether a finding reports it.
    """

    expected: tuple[str, ...]
    got: str
    why: tuple[str, ...]
    missed: tuple[str, ...]
    loader_as_launching: bool
    beside: dict[str, bool]

    @property
    def right(self) -> bool:
        """Return whether the diagnosis has no errors."""
        return not self.why


def first_causes(truth: Truth) -> tuple[Cause, ...]:
    """Return the causes that may come first, waste before work; empty if no cause is worth action.

    Waste can be removed entirely, work cannot. If a host waits for its loader and then launches slowly, removing either
    helps, but only the loader's wait is waste. Work may also come first if it costs more than the most expensive waste,
    or if it still costs as much as that waste after all waste is removed.
    """
    notable = [cause for cause in truth.causes if cause.finding and cause.gain_ms >= NOTABLE * truth.step_ms]
    waste = [cause for cause in notable if cause.waste]
    most = max((cause.gain_ms for cause in waste), default=0.0)
    first = [cause for cause in waste if cause.gain_ms >= (1 - _TIE) * most]
    work = [cause for cause in notable if not cause.waste]
    work = [cause for cause in work if cause.gain_ms > (1 + _TIE) * most or cause.after_waste_ms >= (1 - _TIE) * most]
    heaviest = max((cause.gain_ms for cause in work), default=0.0)
    return (*first, *(cause for cause in work if cause.gain_ms >= (1 - _TIE) * heaviest))


def judge(truth: Truth, analysis: Analysis) -> Verdict:
    """Compare the findings of an analysis with the truth; ignore findings that save less than `NOTABLE`."""
    alarms = [finding for finding in analysis.findings if (finding.recoverable_percent or 0.0) >= 100 * NOTABLE]
    expected = first_causes(truth)
    first = alarms[0] if alarms else None
    names = tuple(cause.name for cause in expected) or ("none",)
    got = _words(first) if first is not None else "none"
    why: list[str] = []
    if first is None:
        if max((cause.gain_ms for cause in expected), default=0.0) >= (NOTABLE + MARGIN) * truth.step_ms:
            why.append("nothing found")
    elif not expected:
        if not _confirmed(first, truth):
            why.append("false alarm")
    else:
        why += _of_first(alarms, truth, expected)
    why += [f"also {_words(alarm)}" for alarm in alarms[1:] if not _confirmed(alarm, truth)]
    reported_codes = {finding.code for finding in analysis.findings}
    if first is not None:
        # If it is enough to remove one of several causes, all these causes must be reported.
        equal = [cause for cause in expected if cause.waste and cause.gain_ms >= (NOTABLE + MARGIN) * truth.step_ms]
        # A first finding of a wrong code is one error; its consequences are not counted.
        if why != ["wrong code"]:
            why += [f"{cause.name} not listed" for cause in equal if cause.code not in reported_codes]
    wasteful = [cause for cause in truth.causes if cause.waste and cause.finding]
    missed = [
        cause
        for cause in wasteful
        if cause.gain_ms >= (NOTABLE + MARGIN) * truth.step_ms and cause.code not in reported_codes
    ]
    loader = bool(expected) and expected[0].code == "input-bound"
    return Verdict(
        expected=names,
        got=got,
        why=tuple(why),
        missed=tuple(cause.name for cause in missed),
        beside=_beside(truth, expected, reported_codes),
        loader_as_launching=loader and "launching" not in names and first is not None and first.code == "launch-bound",
    )


def _beside(truth: Truth, expected: tuple[Cause, ...], reported_codes: set[str]) -> dict[str, bool]:
    """Return `Verdict.beside`; empty if the most expensive expected cause is not waste."""
    if not expected or not expected[0].waste:
        return {}
    enough = max((1 - _TIE) * expected[0].gain_ms, (NOTABLE + MARGIN) * truth.step_ms)
    instead = [cause for cause in truth.causes if not cause.waste and cause.gain_ms >= enough]
    # If work still costs much after the waste is removed, it is a separate problem and no alternative to the waste.
    return {cause.name: cause.code in reported_codes for cause in instead if cause.after_waste_ms < cause.gain_ms / 2}


def _of_first(alarms: list[Finding], truth: Truth, expected: tuple[Cause, ...]) -> list[str]:
    """Return the errors of the first finding or of its alternatives (`instead`), whichever has fewest.

    The only error is "wrong code" if none of these findings has the code of an expected cause.
    """
    first = alarms[0]
    equal = [first, *(alarm for alarm in alarms[1:] if alarm.code in first.instead)]
    wrongs = [_wrong(one, cause) for one in equal for cause in expected if one.code == cause.code]
    if not wrongs:
        return ["wrong code"]
    return min(wrongs, key=len)


def _wrong(finding: Finding, cause: Cause) -> list[str]:
    """Return the errors of a finding with the right code: in its cause, ranks or amount.

    For work, either amount of the cause is right: the savings now, or after all waste is removed.
    """
    why = []
    if not cause.is_named(finding.cause):
        why.append(f"cause {finding.cause}")
    if cause.ranks is not None and finding.ranks not in {cause.ranks, cause.late}:
        why.append(f"ranks {','.join(map(str, finding.ranks))}")
    found = finding.recoverable_ms_per_step or 0.0
    amounts = (cause.gain_ms,) if cause.waste else (cause.gain_ms, cause.after_waste_ms)
    if all(abs(found - ms) > max(AMOUNT_SHARE * ms, AMOUNT_MS) for ms in amounts):
        why.append(f"amount {found:.1f}")
    return why


def _confirmed(finding: Finding, truth: Truth) -> bool:
    """Return whether a cause of the finding's code costs `_CONFIRMED`, or a `MARGIN` less if the finding is right."""
    return any(
        truth.share(cause) >= _CONFIRMED or (truth.share(cause) >= NOTABLE - 2 * MARGIN and not _wrong(finding, cause))
        for cause in truth.causes
        if cause.code == finding.code
    )


def _words(finding: Finding) -> str:
    cause = f" ({finding.cause})" if finding.cause else ""
    return f"{finding.code}{cause}"
