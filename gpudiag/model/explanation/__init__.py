"""Define the documentation of a finding or a warning, a JSON contract of `gpudiag explain --json`."""

from __future__ import annotations

from typing import Literal

import msgspec

EXPLANATION_SCHEMA = "gpudiag/explanation/1"


class CauseAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice for one cause of a finding. `cause` is None if the advice is for every cause."""

    cause: str | None = None
    advice: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The documentation of one code.

    Attributes:
        kind: `finding` about the job or the machine, or `warning` about the recording.
        title: the meaning of the code in one sentence.
        paragraphs: the details.
        fires, silent, cannot_tell: examples in which the finding is made, is not made, and cannot be judged.
        advice: advice on each cause; for a warning, what to record instead.
    """

    schema: str = EXPLANATION_SCHEMA
    code: str
    kind: Literal["finding", "warning"]
    title: str
    paragraphs: tuple[str, ...] = ()
    fires: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    cannot_tell: tuple[str, ...] = ()
    advice: tuple[CauseAdvice, ...] = ()


class ExplanationList(msgspec.Struct, frozen=True, kw_only=True):
    """All codes with their title."""

    schema: str = "gpudiag/explanation-list/1"
    findings: dict[str, str]
    warnings: dict[str, str]
