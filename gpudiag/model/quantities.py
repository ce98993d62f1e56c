"""Define the types of quantities in JSON files, with valid ranges. Readers refuse values out of range.

Files are untrusted: a negative time must not be drawn, and a set of two billion ranks must not be created. The bounds
are far beyond realistic values, but small enough that sums and products of a few values stay finite. Bounds apply to
values from files, not to computed values.
"""

from __future__ import annotations

from typing import Annotated

from gpudiag.model.structs import msgspec

#: Ten times the ranks of the largest known jobs (some 100,000 GPUs). A set of so many ranks takes 50 MB.
MOST_RANKS = 2**20

#: A time of up to 30 years.
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
#: A step time of at least a nanosecond, so that rates can be computed from it.
StepMilliseconds = Annotated[float, msgspec.Meta(ge=1e-6, le=1e12)]
Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
#: A time or duration in a trace.
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
#: A rate per second or step, a ratio, a percentage.
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
#: A share of a whole, in percent.
Percentage = Annotated[float, msgspec.Meta(ge=0, le=100)]
#: A difference, which may be negative.
Difference = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
#: Measured samples per second.
Throughput = Annotated[float, msgspec.Meta(ge=1e-12, le=1e15)]
#: Degrees of freedom of Student's t distribution.
Freedom = Annotated[float, msgspec.Meta(ge=1, le=1e15)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
#: Floating-point operations. The limit is a thousand seconds of work of the fastest device.
Flops = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
#: Number of ranks, processes or devices.
Devices = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
#: Index of one rank, process or device, from 0.
Ordinal = Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS)]
#: Any other number.
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
