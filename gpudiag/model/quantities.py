"""Quantities as they stand in JSON files, with the range that each can have; what is beyond is refused when read.

The files come from other people, and a negative time or a world of two billion ranks in one of them must not be drawn,
nor become a set of that size. The bounds are far beyond anything real, and small enough that sums and products of a few
stay finite. They hold for what is read, not for what is computed.
"""

from __future__ import annotations

from typing import Annotated

from gpudiag.model.structs import msgspec

#: Ten times the ranks of the largest jobs known (some 100,000 GPUs); a set of so many takes 50 MB.
MOST_RANKS = 2**20

#: A time of up to 30 years.
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
#: How long a step takes: a nanosecond at least, so that rates can be made of it.
StepMilliseconds = Annotated[float, msgspec.Meta(ge=1e-6, le=1e12)]
Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
#: A point in time or a distance, in a trace.
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
#: Something per second or step, a ratio, a percentage.
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
#: A share of a whole, in percent.
Percentage = Annotated[float, msgspec.Meta(ge=0, le=100)]
#: A difference, which may be negative.
Difference = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
#: Samples per second of what was measured.
Throughput = Annotated[float, msgspec.Meta(ge=1e-12, le=1e15)]
#: Degrees of freedom of Student's t distribution.
Freedom = Annotated[float, msgspec.Meta(ge=1, le=1e15)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
#: Floating-point operations: a thousand seconds of the fastest device there is.
Flops = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
#: How many ranks, processes or devices.
Devices = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
#: Which rank, process or device.
Ordinal = Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS)]
#: Any other number.
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
