"""Thresholds of the diagnosis, each with its source.

The text below each threshold says what it decides and its source: *Contract* (findings promise it), *Physical*,
*Statistical*, *Definition* (of a word), *Measured* (on what, how often), or *Judgement* (and why it does no harm).
Limits of memory, time and convergence are where they are used. `docs/calibration.md` is generated from this module.
tests/analysis/diagnosis/test_calibration.py has a case just below and one just above each threshold.
"""

from __future__ import annotations

from gpudiag.units import NS_PER_MS, NS_PER_US

WARNING_PERCENT = 5.0
"""From this share of the step on a finding asks for action, and a bucket wants an explanation. Contract."""
CRITICAL_PERCENT = 20.0
"""From this share of the step on a finding is critical. Contract."""
NOTABLE_PERCENT = 1.0
"""Below this share of the step a rule stays silent, and a host does not set the pace. Judgement: a fifth of what asks
for action."""
NOTABLE_MS = 0.05
"""Below this a rule stays silent, however short the step. Judgement: an amount in a report has one digit, and this
rounds to 0.1 ms."""
SAME_AMOUNT = 0.25
"""An amount within this share of another is the same, and a simulation that misses the step by more says nothing.
Contract: amounts are right within 25 %."""
SURE = 0.95
"""From this share of variations survived on a finding is of high confidence. Contract."""
FAIRLY_SURE = 0.6
"""The same for medium confidence. Judgement: what is found and said does not hang on it, only this word."""
MOST = 0.5
"""More than this share is most of it: of a gain that a cause explains, of slow calls' time that few of them take, of
what is beside a collective and known, of a copy that passed before its call returned. Definition."""

BEYOND_CHANCE = 2.0
"""What is so many standard deviations off is hardly chance. Statistical: 95 % of a normal distribution."""
FEWEST_STEPS_LEFT = 3
"""With fewer steps than this left nothing is gained by leaving some out. Statistical: the fewest with a median that one
of them does not move."""
UNLIKE_STEP = 1.5
"""A step so many times as long as the others is of another kind. Measured: the longest step of 36 device tracks of nine
recorded jobs took at most 1.14 times the median of the others; a pause among steps of 29 ms, 5 times."""
MOST_OUTLIERS = 0.25
"""More than this share of the steps are no exception. Judgement: left in or out, the report says so and is less
sure."""
WORTH_FIRST = 0.25
"""Waste that gains so much of what launching would, or more, is said first. Judgement: whichever is first, both are
said with what they gain; in seven recorded jobs of slow hosts whose waste was known it was 37 to 75 % of launching."""
CLEARLY_MORE = 2.0
"""Communication that costs host calls only counts as launching if launching saves so many times as much. Judgement:
either way the calls are said to cost, and where both gain alike both are said."""
AS_RECORDED = 0.02
"""Within this share gains are alike, and the profiler's cost changes nothing: by it recorded and timed steps differ
that only the device sets the pace of. Measured: by -1.8 to +2.0 % in fourteen jobs."""
POOR_SIMULATION = 0.03
"""A simulation that misses the recorded step time by more is trusted less. Measured: at most 0.8 % in nine recordings
of different jobs."""
SIMULATION_ERROR = 0.01
"""A step time within this share of the simulation's says nothing of the profiler's cost. Measured: as above."""

PROFILER_NS_PER_EVENT = 1270.0
"""What the profiler adds to the host for each event that it records. Measured: 26.1 ms profiled against 14.5 ms for
9,130 events (a step of many tiny kernels), and 67.1 against 57.1 ms for 8,110 (a late loader): 1.27 and 1.24 µs."""
PROFILER_NS_PER_CALL = 5000.0
"""The same of a recording without operators, where each event is a call of CUDA, which CUPTI notes. Measured: 27.9 ms
timed and 33.5 ms recorded so for 1,380 calls (a GPT, H100), 28.6 and 35.9 for 1,100 (ResNet-50, H200): 4.1 and 6.6
µs."""
PROFILER_SHARE_OF_EVENT = 0.5
"""The same as a share of what the host takes per event with the profiler, in the median over events: the profiler's
work slows down with the host. Measured: in 18 jobs on two days, on one of which the same machine's host took 3.3 µs per
event and on the other 4.2: 1.28 to 1.63 µs and 1.6 to 2.4 µs, which is 0.49 of that median with a scatter of 15 %;
taken as one figure for all, 24 %."""
PROFILER_SCATTER = 0.15
"""By this share, one standard deviation, hosts of which the same is known differ in it. Measured: in the same 18
jobs."""
LEAST_NS_PER_EVENT = 1000.0
"""The least that it is taken to be. Measured: 1.24 µs was the least seen."""
MOST_NS_SEEN = 2500.0
"""The most that it is taken to be where no timed step says more. Measured: 2.4 µs was the most seen."""
HIGHEST_NS_PER_EVENT = 2 * MOST_NS_SEEN
"""Up to this it is tried where the timed step is shorter than the corrected one. Judgement: twice the most seen; gains
are scaled to a timed step that is shorter still."""
HIGHEST_NS_PER_CALL = 4 * PROFILER_NS_PER_CALL
"""The same of a recording without operators. Judgement: three times the most seen; as above."""
DENSE_NS = 6000.0
"""A host that takes longer than this per event does mostly what is not recorded, which says nothing of its speed.
Measured: 3.3 and 4.2 µs per event on hosts that launch, 12 on the slowest that was seen."""
MOST_PROFILER_SHARE = 0.9
"""At most this share of a stretch of host work is taken to be the profiler's. Judgement: a stretch is some µs long, and
of all events together the profiler takes half."""
PARTS_OF_STEP = 32
"""Into how many parts a step's calls are divided to see where in it a host is slower than its peers. Judgement: a
median over parts, which one place of the step that is slower moves by a thirty-second."""
FEWEST_CALLS = 4
"""With fewer calls than this in each part nothing can be said of it. Statistical: one long call is no median of
four."""
SLOW_THROUGHOUT = 1.5
"""A host is slow throughout when it takes this many times as long as its peers in half of the step. Measured: 2.7 and
3.1 for a quarter of a core, at most 1.2 for ranks that have a core each, whatever else one of them had more to do."""

EVENTS_ELSEWHERE = 400
"""A thread that records nothing for as long as so many of its events usually take is elsewhere. Measured: what
frameworks do in Python between calls (an optimizer that looks through its parameters, DDP's hooks) took 210 to 240
events' time at the longest in five jobs on four hosts, of which the slowest took 12 µs per event and the fastest
2.7."""
ELSEWHERE_NS = 5 * NS_PER_MS
"""However slow the host is, this is no Python between calls. Measured: the longest seen, in the same jobs, took 2.9
ms."""
COMPUTES_NS = 100 * NS_PER_US
"""Beside a device, an operator that takes so long by itself and calls no runtime computes on the CPU. Measured: 54 ms a
step of an optimizer in the host's memory; in 201 of 207 recordings without one at most 0.2 ms, in five of the others 2
to 12 of a host that had lost its core."""
FEW_SLOW_CALLS = 2
"""So many names of slow calls are few. Judgement: a host that loses its core is slow in whatever it does then, and has
many; if the names are not said, the time counts as launching."""
BESIDE = 0.2
"""Threads that are busy at the same time as the training thread for more than this share of their time run beside it
and do not take turns with it. Measured: 40 threads that launch beside the training thread's were busy for 0.0 % of
their time while it was."""
COPY_BEHIND_NS = 20 * NS_PER_US
"""A synchronization that begins this soon after a copy's call is of the same `.to(device)`. Measured: 1 to 9 µs."""
HELD_UP_NS = 8 * NS_PER_US
"""A call of at most this length was not held up by a full queue. Measured: 17,746 calls with fewer than 100 ops in the
queue took 7.4 µs in the median."""
HELD_UP_FACTOR = 3
"""Nor one that took less than so many times the usual of its name. Measured: of 32,926 calls with 100 to 500 ops in the
queue 95 % took at most three times the median."""
FULL_QUEUE_OPS = 500
"""Nor one with fewer ops in the queue. Measured: in 33 processes the longest queue held 1,028 ops in the median, and at
most 1,221."""

QUEUED_NS = 20 * NS_PER_US
"""An op that started this long after its launch stood in a queue, and one this long after the work before it found the
device idle. Measured: of 118,406 ops that were launched 0.1 ms before or more, 99 % started within 22 µs of the one
before."""
AT_ONCE_NS = 10 * NS_PER_US
"""An op of another stream that ended so shortly before was waited for, where nothing else explains the start. Measured:
of the same ops 95 % started within 7.7 µs."""
CLOCK_NS = 1 * NS_PER_US
"""An op that began this long before another had ended did not wait for it. Physical: timestamps of a device differ by
less."""
GAP_IN_GRAPH_NS = 450.0
"""From a kernel's end to the start of the next in a CUDA graph. Measured: on H200s 0.41 and 0.51 µs in the mean, of
3,648 and 2,404 kernels; launched one by one they are 1.2 to 1.3 µs apart when the host is far ahead."""
FEW_OPS = 4
"""A stream with no more ops in a step than this says little of when the step ends; then the host says it. Judgement:
the mean over steps, of which all amounts are, is the same either way."""
TINY_KERNEL_US = 10.0
"""Kernels shorter than this take less time to run than to launch. Physical: CUDA's call alone takes 5 to 7 µs in the
median, what the framework does around it as much again."""

CONTENTION_FREE = 0.05
"""An op counts as contention-free when less than this share of it ran beside a collective. Judgement: beside one it
loses a third, so that of these an op lost 2 % at most."""
ALIKE_CONTENTION_FREE = 0.1
"""Kernels are taken for the same work when the middle half of their contention-free times is within this share of the
median. Measured: on an H200 0.2 to 2 % for one size, several times the median for two; of 2,797 kernels at one place of
the step 95 % are within 8 %."""
ALIKE_DISTURBED = 0.25
"""The same of their contended times. Measured: on an H200 5 to 20 % for one size."""
CONTENTION_FREE_POSITIONS = 2
"""Of a layer that is repeated the kernels are at this many places of the step at least, contention-free. Definition: of
"repeated"."""
CONTENDED_POSITIONS = 3
"""Or at this many contended. Statistical: contended times scatter more."""
MOST_SLOWED = 2.5
"""A kernel that takes longer than this times its supposed counterparts is other work. Measured: of 20,251 contended
kernels 99 % took at most 1.98 times as long. At worst, work that filled all processors once must fill them twice."""
TRANSFERRING = 1.7
"""Beside a collective that transfers a kernel loses so many times the share of the processors that the collective's
kernel holds, as it also takes bandwidth. Measured: by counterparts on H200s, where NCCL holds 24 of 132 processors, 18
%: of the time of kernels beside all-reduces 17 to 23 % was lost to such as spun, 30 and 32 % to such as transferred."""

OF_NVLINK = 0.125
"""A large collective whose bus bandwidth is below this share of the GPUs' NVLink does not use it. Measured: 22 to 27
GB/s without peer access, in ten jobs on H100s and H200s, whose NVLink carries 450 one way; 257 to 334 with it, in
four."""
LARGE_TRANSFER_BYTES = 16 << 20
"""A collective of so many bytes is large: latency takes little of it. Physical: over 150 GB/s that is 0.1 ms, of which
launching and synchronizing a ring take a fifth at most."""
TINY_TRANSFER_BYTES = 64 << 10
"""A collective of fewer bytes costs its latency, so that sending fewer bytes saves nothing. Physical: at the 16 GB/s of
PCIe 3 these take 4 µs, and starting a ring of several GPUs 10 to 20."""
MOSTLY_UNSEEN = 0.1
"""With more of the transferring than this in collectives of ranks whose traces are missing, nothing can be said of it.
Judgement: a report that abstains says which traces to give."""
OFTEN = 2
"""A rank that synchronizes, or makes two calls one after the other, so many times as often as its peers does something
of its own. Judgement: ranks run the same program, so that one that waits only longer waits as often."""
ALSO_LATE = 0.3
"""A rank belongs to the late ones when its excess is at least this share of the largest. Judgement: amount and cause do
not hang on it, and the evidence has the excess of every rank."""
JITTER = 1.3
"""Another rank is late each step when equalizing every step saves this much more than equalizing ranks. Judgement:
where one rank's lateness is no chance, a third of the gain is not its own."""

SAME_CLOCK = 0.01
"""Clocks of boards within this share are the same. Measured: boards of one model come with maxima a few MHz apart by
binning, 15 of 1980."""
LINK_OF_CEILING = 0.6
"""A link that carries less of its ceiling is degraded. Measured: pinned copies of healthy links reach 80 to 97 %."""
LINK_OF_SIBLINGS = 0.75
"""A link that carries less of what those of the same model do is degraded. Measured: GPUs of one model in one machine
agree within some percent."""
LINK_SEVERE = 0.35
"""A degraded link that carries less of its ceiling is critical. Judgement: only the severity hangs on it."""
PROVES_FULL_WIDTH = 0.8
"""A link that carries this much of its maximum is at its maximum, whatever its registers say. Physical: half the lanes,
or a generation less, carry half."""
NARROW_GB_PER_S = 2.0
"""A GPU whose link carries less hangs on a riser. Physical: two lanes of PCIe 3; GPUs for training have eight or
sixteen."""
CONTEXT_BYTES = 512 << 20
"""A process that holds less holds hardly more than a CUDA context. Measured: 300 to 500 MB on current GPUs."""
PEER_SLOWER = 0.9
"""Direct copies at less of the rate of staged ones are slower. Judgement: repeats differ by some percent, not by a
tenth over all directions."""
ONE_LINK = 1.3
"""GPUs that carry together at most so many times what one of them carries alone are behind one uplink. Physical: over
one link once as much, over two twice."""
ONE_DIRECTION = 1.25
"""Both directions that carry together at most so many times one direction share a link. Measured: over separate links
1.7 to 2 times."""
