"""Thresholds of the timeline that affect findings, each with its source."""

from __future__ import annotations

from gpudiag.units import NS_PER_S, NS_PER_US

LEAST_TOLERANCE_NS = 300 * NS_PER_US
"""Ends of one collective further apart than this (after the clock offset) are not one collective. Measured:
participants leave at most 70 µs apart on one host; the rest is room for clocks that drift."""
SAME_CLOCK_NS = 100 * NS_PER_US
"""Offsets up to this are the spread of participants' departures, not a difference between clocks; a larger median
distance makes the last arrival uncertain. Measured: 0.4 to 13 µs in the median and at most 70 µs on one host."""
MATCHED_SHARE = 0.5
"""At least this share of the collectives that two captures both recorded must match for them to be of one run.
Measured: in 18 sound recordings 97 to 100 % match; of two runs or two models mixed, none."""
TO_MOVE_A_CLOCK = 0.75
"""At least this share must fit before a clock is moved. Measured: as above, half-way between the share that must match
and the share that does."""
NEARLY_ALL = 0.95
"""Pairings with less coverage than this share of the best are worse. Measured: as above, up to 3 % are lost at the
edges."""
EQUALLY_GOOD = 4.0
"""Pairings whose spread is within this factor of the best are equally good; the clocks decide. Judgement: without a
common origin of the clocks, a warning says that the match is ambiguous."""
FINEST_SPREAD_NS = 20 * NS_PER_US
"""Pairings whose spread is below this are equally good too. Measured: participants leave up to 13 µs apart in the
median."""
TELLING = 8
"""Fewer pairs than this may fit closely by chance. Statistical: one offset is fitted to them."""
FEWEST_SEEN = 4
"""Fewer collectives than this may match, or not match, by chance. Statistical."""
FEWEST_REPEATS = 3
"""Fewer repetitions than this are no pattern of steps. Statistical: two distances are the fewest that can agree."""
FEW_STEPS = 3
"""Fewer analysed steps than this say little about the steps that were not recorded. Statistical: as above."""
PERIOD_APART = 0.02
"""Distances within this share of a step's launches are of one period. Judgement: a warning says that such steps are
guessed."""
LOST_SHARE = 0.02
"""From this share of launches without a device op on, ops were lost. Measured: 77 traces of sound processes lack at
most 0.08 %, memsets of zero bytes, which do nothing; a very short one lacks 2 of 100."""
FEWEST_LOST = 10
"""Fewer lost ops than this are ignored. Measured: as above, 2 of 100."""
FEWEST_DURATIONS = 100
"""Equal traces with fewer distinct durations are not copies. Judgement: measured durations differ; only simulated
ranks, all alike, have few."""
LEAST_UNIX_NS = 10**17
"""A clock with a smaller value does not count from 1970. Physical: this is in March 1973."""
RUNS_APART_NS = 10 * NS_PER_S
"""A recording that begins this long after all others have ended is of another run. Judgement: clocks set over the
network agree to milliseconds, and a restarted job needs longer until it trains."""
THIN_SHARE = 0.10
"""A recording whose events cover less than this share of the windows is thin. Measured: the least covered of 70 tracks
of sound jobs have 23 % (a host in garbage collection), 49 % (a slow loader without marks) and 73 %."""
COVERED_SHARE = 0.70
"""Steps that represent less than this share of the recorded device work do not describe the rest. Contract
(`partial-coverage`)."""
ALIKE_OPS = 0.1
"""A step at the edge of a capture is complete if its number of device ops is within this share of its neighbour's;
ranges are steps if their numbers of launches are within it. Judgement: an edge step is used only if there would be
only one step otherwise, and a repeating pattern is searched if ranges vary more."""
AT_ONCE_NS = 20 * NS_PER_US
"""A device op that starts within this time of its launch found the device idle. Measured: of 118,406 ops that were
launched 0.1 ms before or more, 99 % started within 22 µs of the one before."""
AS_CLOSE = 2.0
"""A group of ranks is preferred to its subgroups if its members' collectives end at most this many times as far apart.
Measured: with four gloo processes on two cores, other ranks' collectives end 4 to 170 times as far away."""
NOT_BY_CHANCE = 0.3
"""The same if they end nearer than this share of the distance that is expected by chance. Measured: as above, 0.004 to
0.2 of it among members and 0.6 to 0.9 among others."""
TWICE_AS_OFTEN = 1.5
"""Middle stages of a pipeline send this many times as often as the first one, unless its schedule is interleaved.
Physical: twice, because only they send activations and gradients."""
SHORT_PASS = 0.1
"""Compute between two messages that is shorter than this share of the longest is no pass. Judgement: updates and losses
take a few percent of a pass."""
WIDEST_SHIFT = 64
"""Most messages by which one capture may begin later than another. Judgement: several steps of a pipeline."""
