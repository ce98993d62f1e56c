"""Thresholds of the timeline that affect findings, each with its source."""

from __future__ import annotations

from gpudiag.units import NS_PER_S, NS_PER_US

LEAST_TOLERANCE_NS = 300 * NS_PER_US
"""Two ranks' ends that are further apart than this, without the clock offset, are of different collectives. Measured:
participants leave a collective at most 70 µs apart on one host; the rest allows for drifting clocks."""
CORRECTED_NS = 20 * NS_PER_US
"""Clocks are corrected if matched ends are further apart than this in the median. Measured: at most 13 µs between ranks
on one host. A clock that is 0.1 ms early makes a short broadcast end before the last rank arrives, and hides a wait."""
MATCHED_SHARE = 0.5
"""Two captures are of one run if at least this share of the collectives during both captures has a match. Measured: 97
to 100 % match in 18 sound recordings, and none match in mixtures of two runs or two models."""
TO_MOVE_A_CLOCK = 0.75
"""A clock is shifted only if at least this share of the collectives matches. Measured: as for `MATCHED_SHARE`; this is
half-way to the share in sound recordings."""
NEARLY_ALL = 0.95
"""A pairing is worse than the best one if its coverage is below this share of the best coverage. Measured: in the same
recordings, up to 3 % of the collectives at the edges have no match."""
EQUALLY_GOOD = 4.0
"""Pairings whose spread is at most this multiple of the smallest are equally good; the one with the smallest clock
offset is chosen. Judgement: if the clocks have no common origin, a warning says that the match is ambiguous."""
FINEST_SPREAD_NS = 20 * NS_PER_US
"""Pairings of a smaller spread than this are equally good. Measured: participants leave up to 13 µs apart in the
median."""
TELLING = 8
"""Fewer pairs than this may have a small spread by chance. Statistical: one offset is fitted to all pairs."""
FEWEST_SEEN = 4
"""Fewer collectives than this may match, or not match, by chance. Statistical."""
FEWEST_REPEATS = 3
"""Fewer repetitions than this do not show steps. Statistical: at least two distances must agree."""
FEW_STEPS = 3
"""Fewer analysed steps than this say little about unrecorded steps. Statistical: as for `FEWEST_REPEATS`."""
PERIOD_APART = 0.02
"""Two distances count as equal if they differ by at most this share of a step's launches. Judgement: a warning says
that such steps are guessed."""
LOST_SHARE = 0.02
"""The profiler lost ops if at least this share of launches has no device op. Measured: 77 traces of sound processes
lack at most 0.08 % (memsets of zero bytes, which do nothing); a very short trace lacks 2 of 100."""
FEWEST_LOST = 10
"""Fewer lost ops than this are ignored. Measured: a very short trace lacks 2 of 100 (see `LOST_SHARE`)."""
FEWEST_DURATIONS = 100
"""Equal traces with fewer distinct durations than this are not copies. Judgement: measured durations differ; only
identical simulated ranks have equal durations."""
LEAST_UNIX_NS = 10**17
"""A clock with a smaller value does not count from 1970. Physical: this value is in March 1973."""
RUNS_APART_NS = 10 * NS_PER_S
"""A recording that begins this long after all others have ended is of another run. Judgement: clocks that are
synchronized over the network agree to milliseconds, and a restarted job needs longer than this until it trains."""
THIN_SHARE = 0.10
"""A recording is thin if its events cover less than this share of the windows. Measured: of 70 tracks of sound jobs,
the three lowest are 23 % (a host in garbage collection), 49 % (a slow loader without marks) and 73 %."""
COVERED_SHARE = 0.70
"""If the analysed steps represent less than this share of the recorded device work, a warning says so. Contract
(`partial-coverage`)."""
ALIKE_OPS = 0.1
"""A step at the edge of a capture is complete if its number of device ops differs by at most this share from its
neighbour's. Ranges are steps if their numbers of launches differ by at most this share from the median. Judgement: an
edge step is used only if one step would be left otherwise; if ranges vary more, a repeating pattern is searched."""
AT_ONCE_NS = 20 * NS_PER_US
"""A device op that starts within this time of its launch found the device idle. Measured: of 118,406 ops that started
0.1 ms or more after their launch, 99 % started within 22 µs of the previous op."""
AS_CLOSE = 2.0
"""A group of ranks is preferred to its subgroups if its members' collectives end at most this many times as far apart
as a subgroup's. Measured: with four gloo processes on two cores, ends of non-members are 4 to 170 times as far away."""
NOT_BY_CHANCE = 0.3
"""A group of ranks is also preferred if members' ends are nearer than this share of the distance expected by chance.
Measured: in the same job, members' ends are at 0.004 to 0.2 of that distance, and non-members' at 0.6 to 0.9."""
TWICE_AS_OFTEN = 1.5
"""A schedule is interleaved unless middle stages send at least this many times as often as the first stage. Physical:
without interleaving they send twice as often, because only they send both activations and gradients."""
SHORT_PASS = 0.1
"""Compute between two messages is no pass if it is shorter than this share of the longest such stretch. Judgement:
updates and losses take a few percent of a pass."""
WIDEST_SHIFT = 64
"""Maximum number of messages by which one capture may begin later than another. Judgement: several pipeline steps."""
