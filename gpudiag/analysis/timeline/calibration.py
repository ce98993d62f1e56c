"""Thresholds of the timeline that affect findings, each with its source."""

from __future__ import annotations

from gpudiag.units import NS_PER_S, NS_PER_US

LEAST_TOLERANCE_NS = 300 * NS_PER_US
"""Ends of one collective further apart than this (after the clock offset) are not one collective. Measured:
participants leave at most 70 µs apart on one host; the rest is room for clocks that drift."""
SAME_CLOCK_NS = 100 * NS_PER_US
"""Offsets up to this are how unevenly participants leave, not a difference between clocks; ends that are further apart
in the median blur who came last. Measured: 0.4 to 13 µs in the median and at most 70 µs on one host."""
MATCHED_SHARE = 0.5
"""Less than this of what two captures both saw must match for them to be of one run. Measured: in 18 sound recordings
97 to 100 % match, of two runs or two models mixed nothing."""
TO_MOVE_A_CLOCK = 0.75
"""So much of it must fit before a clock is moved. Measured: as above, half-way between what must match and what
does."""
NEARLY_ALL = 0.95
"""Pairings that fit less than this of what the best does are worse. Measured: as above, up to 3 % are lost at the
edges."""
EQUALLY_GOOD = 4.0
"""Pairings whose spread is within this factor of the best are equally good; the clocks decide. Judgement: where clocks
have no common origin, it is said that there is more than one way."""
FINEST_SPREAD_NS = 20 * NS_PER_US
"""So are those whose spread is below this. Measured: participants leave up to 13 µs apart in the median."""
TELLING = 8
"""Fewer pairs than this fit each other closely by chance. Statistical: one offset is taken from them."""
FEWEST_SEEN = 4
"""Fewer collectives than this match or do not by chance. Statistical."""
FEWEST_REPEATS = 3
"""Fewer repetitions than this are no pattern of steps. Statistical: two distances are the fewest that can agree."""
FEW_STEPS = 3
"""Fewer analysed steps than this say little about the steps that were not recorded. Statistical: as above."""
PERIOD_APART = 0.02
"""Repetitions within this share of a step's launches are of one period. Judgement: steps found so are said to be
guessed."""
LOST_SHARE = 0.02
"""From this share of launches without their device op on, ops were lost. Measured: 77 traces of sound processes lack
none or up to 0.08 %, memsets of zero bytes, which do nothing; a very short one lacks 2 of 100."""
FEWEST_LOST = 10
"""Fewer lost ops than this say nothing. Measured: those 2 of 100."""
FEWEST_DURATIONS = 100
"""Traces of the same events with fewer durations are not one recording twice. Judgement: what is measured lasts
differently each time; only ranks that are simulated, all alike, have few."""
LEAST_UNIX_NS = 10**17
"""A clock that shows less counts from something else than 1970. Physical: this is in March 1973."""
RUNS_APART_NS = 10 * NS_PER_S
"""Recordings of which one begins this long after all others have ended are of two runs. Judgement: hosts' clocks agree
to milliseconds where they are set over the network, and a job that is started again does not train as soon."""
THIN_SHARE = 0.10
"""Less than this share of the windows inside any recorded event is a thin recording. Measured: the emptiest of 70 lanes
of sound jobs are covered to 23 % (a host in garbage collection), 49 % (a slow loader without marks) and 73 %."""
COVERED_SHARE = 0.70
"""Steps that stand for less than this share of the recorded device work say nothing of the rest. Contract
(`partial-coverage`)."""
ALIKE_OPS = 0.1
"""A step at the edge of a capture with as many device ops as the one beside it, within this share, is whole;
ranges from whose begin to the next one's as much is launched are steps. Judgement: an edge step is used only where
there would be one step else, and a repeating pattern is looked for where ranges vary more."""
AT_ONCE_NS = 20 * NS_PER_US
"""A device op that starts so soon after its launch found the device idle. Measured: of 118,406 ops that were launched
0.1 ms before or more, 99 % started within 22 µs of the one before."""
