"""Select a rule's advice by framework."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class For(msgspec.Struct, frozen=True):
    """A line of advice that applies only to users of one framework, or of all but PyTorch and TensorFlow (`others`)."""

    framework: str
    line: str

    def holds_in(self, framework: str) -> bool:
        """Return whether the line applies to users of this framework."""
        return framework not in _NAMED if self.framework == "others" else framework == self.framework


def pytorch(line: str) -> For:
    """Return a line only for users of PyTorch."""
    return For("pytorch", line)


def tensorflow(line: str) -> For:
    """Return a line only for users of TensorFlow."""
    return For("tensorflow", line)


def jax(line: str) -> For:
    """Return a line for users of JAX alone."""
    return For("jax", line)


def others(line: str) -> For:
    """Return a line for frameworks other than PyTorch and TensorFlow."""
    return For("others", line)


_NAMED = ("pytorch", "tensorflow")

#: Lines in the order in which they are given; a line that is not `For` a framework applies to all.
Advice = tuple[str | For, ...]

TF_DATA = tensorflow(
    "Let tf.data prepare batches ahead: map(…, num_parallel_calls=tf.data.AUTOTUNE), then batch, then "
    "prefetch(tf.data.AUTOTUNE) as the last of the pipeline; cache() what is decoded once.",
)
TF_COMPILE = tensorflow("jit_compile=True (--compile) for the model and its optimizer makes few kernels of many.")
TF_SEVERAL_STEPS = (
    "Several steps in one tf.function, or steps_per_execution of model.compile, keep Python and the ends of functions "
    "out of the step."
)


def advice_for(framework: str, lines: Iterable[str | For], **words: str) -> tuple[str, ...]:
    """Return the lines that fit this framework, with `words` filled into their braces."""
    texts = (
        line if isinstance(line, str) else line.line
        for line in lines
        if isinstance(line, str) or line.holds_in(framework)
    )
    return tuple(text.format(**words) if words else text for text in texts)
