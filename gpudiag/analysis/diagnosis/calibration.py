"""Thresholds of the diagnosis, each with its source.

The text below each threshold states the threshold's effect and then its source: *Contract* (a promise about findings),
*Physical*, *Statistical*, *Definition* (of a word), *Measured* (with the measured values), or *Judgement* (with the
reason why an error does little harm). Limits of memory, time and convergence are defined in the modules that use them.
`docs/calibration.md` is generated from this module. tests/analysis/diagnosis/test_calibration.py has a case just below
and one just above each threshold.
"""

from __future__ import annotations

from gpudiag.units import NS_PER_MS, NS_PER_US

WARNING_PERCENT = 5.0
"""A finding of at least this share of the step asks for action; a bucket of this share needs an explanation.
Contract."""
CRITICAL_PERCENT = 20.0
"""A finding of at least this share of the step is critical. Contract."""
NOTABLE_PERCENT = 1.0
"""Savings below this share of the step are not reported, and a host does not set the pace if removing its work saves
less. Judgement: one fifth of WARNING_PERCENT."""
NOTABLE_MS = 0.05
"""Savings below this time per step are not reported, however short the step is. Judgement: reports show one decimal,
and this time rounds to 0.1 ms."""
ESTIMATED_PERCENT = 2.0
"""Estimated savings of faster kernels below this share of the step are not reported. Contract: estimates are rougher
than measured waste."""
SAME_AMOUNT = 0.25
"""Two amounts within this share of each other count as equal. A simulation is rejected if its step time differs by more
from the recorded one. Contract: amounts are right within 25 %."""
SURE = 0.95
"""A finding has high confidence if it survives at least this share of the variations of the job (`scoring`).
Contract."""
FAIRLY_SURE = 0.6
"""A finding has medium confidence if it survives at least this share of the variations. Judgement: only the confidence
label depends on it, not the findings."""
MOST = 0.5
"""More than this share of an amount is "most" of it. For example, a cause explains a finding if it explains most of the
savings, and a few names explain slow calls if they have most of the slow calls' time. Definition."""

BEYOND_CHANCE = 2.0
"""A deviation of at least this many standard deviations is hardly chance. Statistical: 95 % of a normal
distribution."""
FEWEST_STEPS_LEFT = 3
"""If fewer steps than this would remain, no outlier steps are left out. Statistical: a single outlier among three steps
is never their median."""
UNLIKE_STEP = 1.5
"""A step is an outlier if it takes more than this multiple of the others' median. Measured: over 36 device tracks of
nine recorded jobs the longest step took at most 1.14 times the median of the others; a step with a pause, among steps
of 29 ms, took 5 times as long."""
MOST_OUTLIERS = 0.25
"""If more than this share of the steps are outliers, none is left out. Judgement: the report names outliers in both
cases, and lowers its confidence."""
WORTH_FIRST = 0.25
"""Waste is ranked before launching if its savings reach this share of the savings of launching. Judgement: only the
order depends on it; in seven jobs with slow hosts, waste saved 37 to 75 % of launching's savings."""
CLEARLY_MORE = 2.0
"""If communication costs only host calls, and removing launch overhead saves at least this many times as much, the
calls are reported as launch overhead. Judgement: the calls are reported in either case."""
AS_RECORDED = 0.02
"""Savings within this share of each other count as equal, and a profiler's cost below this share of the step is
ignored. Measured: recorded and unprofiled steps differed by -1.8 to +2.0 % in fourteen jobs paced by devices."""
POOR_SIMULATION = 0.03
"""If the simulation misses the recorded step time by more than this share, confidence is lower. Measured: at most 0.8 %
in nine recordings of different jobs."""
SIMULATION_ERROR = 0.01
"""If the unprofiled step time is within this share of the simulated one, the difference does not show the profiler's
cost. Measured: as for POOR_SIMULATION."""

PROFILER_NS_PER_EVENT = 1270.0
"""The profiler adds this to the host for each recorded event. Measured: 26.1 ms profiled against 14.5 ms for 9,130
events (a step of many tiny kernels), and 67.1 against 57.1 ms for 8,110 (a late loader): 1.27 and 1.24 µs."""
PROFILER_NS_PER_CALL = 5000.0
"""The profiler adds this for each event of a kernel-only trace, in which each event is a CUDA call that CUPTI records.
Measured: 27.9 ms unprofiled and 33.5 ms recorded for 1,380 calls (a GPT, H100), 28.6 and 35.9 for 1,100 (ResNet-50,
H200): 4.1 and 6.6 µs."""
PROFILER_SHARE_OF_EVENT = 0.5
"""The profiler's cost is this share of the host's median time per event with the profiler, because the profiler slows
down with the host. Measured: 18 jobs on two days on one machine, whose host took 3.3 µs per event on one day and 4.2 on
the other. The cost was 1.28 to 1.63 µs on the first day and 1.6 to 2.4 µs on the second: 0.49 of the median, with a
scatter of 15 %. One cost for all jobs would have a scatter of 24 %."""
PROFILER_SCATTER = 0.15
"""The profiler's cost scatters by this share (one standard deviation) between hosts of equal time per event. Measured:
in the 18 jobs of PROFILER_SHARE_OF_EVENT."""
LEAST_NS_PER_EVENT = 1000.0
"""The profiler's cost per event is assumed to be at least this. Measured: the least was 1.24 µs."""
MOST_NS_SEEN = 2500.0
"""The profiler's cost per event is assumed to be at most this unless unprofiled steps show more. Measured: 2.4 µs."""
HIGHEST_NS_PER_EVENT = 2 * MOST_NS_SEEN
"""Costs up to this are tried if the unprofiled step is shorter than the corrected one. Judgement: twice the highest
cost seen; savings are scaled if the unprofiled step is shorter still."""
HIGHEST_NS_PER_CALL = 4 * PROFILER_NS_PER_CALL
"""Costs up to this are tried for a kernel-only trace. Judgement: three times the highest cost seen; as for
HIGHEST_NS_PER_EVENT."""
DENSE_NS = 6000.0
"""If a host takes longer than this per event, most of its work is not recorded, so that its speed is unknown. Measured:
3.3 and 4.2 µs per event on hosts that launch, 12 on the slowest host seen."""
MOST_PROFILER_SHARE = 0.9
"""The profiler's cost is assumed to be at most this share of the host time between two simulated calls. Judgement: the
profiler takes half of the host time over all events, but single calls are only a few µs apart."""
PARTS_OF_STEP = 32
"""The calls of a step are divided into this many parts, to find where a host is slower than its peers. Judgement: one
slow source location changes only one of 32 parts, and hardly moves the median over parts."""
FEWEST_CALLS = 4
"""If a part of a step has fewer calls than this on average, the parts of hosts are not compared. Statistical: one long
call does not move the median of four."""
SLOW_THROUGHOUT = 1.5
"""A host is slow throughout if it takes this many times as long as its peers in half of the step. Measured: 2.7 and 3.1
for a quarter of a core, at most 1.2 for ranks with a core each, whatever extra work one of them had."""

EVENTS_ELSEWHERE = 400
"""A thread has untraced host time if it records nothing for as long as this many of its events take on average.
Measured: Python of frameworks between calls (an optimizer that iterates over its parameters, hooks of DDP) took the
time of 210 to 240 events at most, in five jobs on four hosts with 12 µs per event on the slowest and 2.7 on the
fastest."""
ELSEWHERE_NS = 5 * NS_PER_MS
"""A pause of this length is not Python between calls, however slow the host is. Measured: in the jobs of
EVENTS_ELSEWHERE, Python between calls took at most 2.9 ms."""
COMPUTES_NS = 100 * NS_PER_US
"""Beside a device, an operator computes on the CPU if its self time reaches this and it calls no runtime. Measured: an
optimizer in host memory computed for 54 ms per step; of 207 recordings without such an optimizer, 201 had at most 0.2
ms, and five had 2 to 12 ms, on a host that had lost its core."""
FEW_SLOW_CALLS = 2
"""Slow calls are reported by name if at most this many names have most of their time; otherwise their time counts as
launching. Judgement: a host that loses its core is slow in calls of many names."""
BESIDE = 0.2
"""A thread runs beside the training thread, not in turns with it, if the training thread is busy for more than this
share of the thread's busy time. Measured: 40 threads that launch kernels shared 0.0 % of their busy time with the
training thread."""
COPY_BEHIND_NS = 20 * NS_PER_US
"""A synchronization that begins this soon after the call of a copy belongs to the same `.to(device)`. Measured: 1 to 9
µs."""
HELD_UP_NS = 8 * NS_PER_US
"""A call of at most this length did not wait for a full launch queue. Measured: the median of 17,746 calls with fewer
than 100 ops in the queue was 7.4 µs."""
HELD_UP_FACTOR = 3
"""A call that took less than this multiple of the median of the calls of its name did not wait for a full launch queue.
Measured: 95 % of 32,926 calls with 100 to 500 ops in the queue took at most three times the median."""
FULL_QUEUE_OPS = 500
"""A call with fewer ops than this in the launch queue did not wait for it. Measured: in 33 processes the longest queue
held 1,028 ops in the median, and at most 1,221."""

QUEUED_NS = 20 * NS_PER_US
"""An op that started this long after its launch was queued; an op that started this long after the previous work found
the device idle. Measured: of 118,406 ops launched at least 0.1 ms before, 99 % started within 22 µs of the previous
op."""
AT_ONCE_NS = 10 * NS_PER_US
"""An op waited for an op of another stream if the other op ended within this time before the op's start, and nothing
else explains the start. Measured: of the ops of QUEUED_NS, 95 % started within 7.7 µs of the previous op."""
CLOCK_NS = 1 * NS_PER_US
"""An op that began this long before another op's end did not wait for the other op. Physical: the error of a device's
timestamps is less."""
GAP_IN_GRAPH_NS = 450.0
"""Kernels of a CUDA graph follow each other after this gap. Measured: on H200s a mean of 0.41 and 0.51 µs over 3,648
and 2,404 kernels; kernels launched one by one are 1.2 to 1.3 µs apart if the host runs far ahead."""
FEW_OPS = 4
"""A stream with at most this many ops in a step does not determine the end of the step; the host does. Judgement:
savings are means over steps, so that they do not depend on where a step ends."""
TINY_KERNEL_US = 10.0
"""A kernel shorter than this takes less time than its launch. Physical: the CUDA call alone takes 5 to 7 µs in the
median, and the framework's work around it as much again."""

CONTENTION_FREE = 0.05
"""An op is contention-free if less than this share of it ran beside a collective. Judgement: an op loses a third of the
time that it runs beside a collective, so that a contention-free op loses 2 % at most."""
ALIKE_CONTENTION_FREE = 0.1
"""Kernels do the same work if the interquartile range of their contention-free durations is at most this share of their
median. Measured: on an H200 0.2 to 2 % for kernels of one size, several times the median if two sizes are mixed; of
2,797 kernels at one position of the step 95 % are within 8 %."""
ALIKE_DISTURBED = 0.25
"""Kernels do the same work if the interquartile range of their contended durations is at most this share of the median.
Measured: on an H200 5 to 20 % for kernels of one size."""
CONTENTION_FREE_POSITIONS = 2
"""Kernels belong to a repeated layer if they are contention-free at this many positions of the step or more.
Definition."""
CONTENDED_POSITIONS = 3
"""Kernels also belong to a repeated layer if they are contended at this many positions of the step or more.
Statistical: contended durations scatter more."""
MOST_SLOWED = 2.5
"""A kernel that takes longer than this multiple of its contention-free matches does other work. Measured: 99 % of
20,251 contended kernels took at most 1.98 times as long. In the worst case, work that filled all processors once must
fill the remaining processors twice."""
TRANSFERRING = 1.7
"""Beside a collective that transfers, a kernel loses this multiple of the share of processors that the collective
holds, because it also loses bandwidth. Measured: on H200s NCCL holds 24 of 132 processors, 18 %. Kernels lost 17 to 23
% of their time beside all-reduces that waited, and 30 and 32 % beside all-reduces that transferred."""

OF_NVLINK = 0.125
"""A large collective does not use NVLink if its bus bandwidth is below this share of the bandwidth of the GPUs' NVLink.
Measured: 22 to 27 GB/s in ten jobs without peer access, and 257 to 334 GB/s in four jobs with peer access, on H100s and
H200s, whose NVLink carries 450 GB/s one way."""
LARGE_TRANSFER_BYTES = 16 << 20
"""A collective of at least this size is large, so that latency is a small part of its time. Physical: at 150 GB/s it
takes 0.1 ms, of which launching and synchronizing a ring take a fifth at most."""
TINY_TRANSFER_BYTES = 64 << 10
"""A collective below this size takes only its latency, so that sending fewer bytes saves nothing. Physical: at the 16
GB/s of PCIe 3 this size takes 4 µs, and starting a ring of several GPUs 10 to 20."""
MOSTLY_UNSEEN = 0.1
"""If more than this share of the transfer time is in collectives of ranks without traces, communication is not
diagnosed. Judgement: the report then says which traces are missing."""
OFTEN = 2
"""A rank does extra work if it synchronizes, or makes two calls in succession, this many times as often as its peers.
Judgement: ranks run the same program, so that a rank that only waits longer waits as often."""
ALSO_LATE = 0.3
"""A rank is a straggler if its excess is at least this share of the largest excess. Judgement: savings and cause do not
depend on this share, and the evidence has the excess of every rank."""
JITTER = 1.3
"""The straggler changes between steps if equalizing the ranks of each step saves more than this many times as much as
equalizing the ranks' means. Judgement: below it, the rank that is late on average causes most of the savings."""

SAME_CLOCK = 0.01
"""Board clocks within this share of each other are equal. Measured: the maxima of boards of one model differ through
binning, by up to 15 of 1980 MHz."""
LINK_OF_CEILING = 0.6
"""A link that carries less than this share of its ceiling is degraded. Measured: pinned copies usually reach 80 to 97
%."""
LINK_OF_SIBLINGS = 0.75
"""A link that carries less than this share of the rate of links of the same model is degraded. Measured: GPUs of one
model in one machine agree within some percent."""
LINK_SEVERE = 0.35
"""A degraded link below this share of its ceiling is critical. Judgement: only the severity depends on it."""
PROVES_FULL_WIDTH = 0.8
"""A link that carries this share of its maximum has its full width and speed, whatever its registers say. Physical:
half the lanes, or a generation less, carry half."""
NARROW_GB_PER_S = 2.0
"""A GPU whose link carries less than this is on a riser. Physical: two lanes of PCIe 3 carry 2 GB/s; GPUs usually have
eight or sixteen lanes."""
CONTEXT_BYTES = 512 << 20
"""A process that holds less memory than this holds hardly more than a CUDA context. Measured: contexts have 300 to 500
MB."""
PEER_SLOWER = 0.9
"""Direct copies between GPUs are slower than copies through host memory if they reach less than this share of the
latter's rate. Judgement: repeated measurements differ by some percent, not by a tenth over all directions."""
ONE_LINK = 1.3
"""GPUs share one uplink if together they carry at most this many times the rate of one of them alone. Physical: once
the rate over one link, twice the rate over two links."""
ONE_DIRECTION = 1.25
"""Both directions share a link if together they carry at most this many times one direction. Measured: 1.7 to 2 times
over separate links."""
LONG_STAGE = 1.03
"""A pipeline stage that computes this many times the mean of the stages is reported. Judgement: stages with even work
differ by a percent."""
MORE_WORK = 1.1
"""A late rank with this many times its peers' FLOPs or bytes has longer sequences or more of them. Judgement: the work
of a rank that is late by 5 % of the step exceeds this multiple."""
LONGER_SEGMENT = 1.25
"""Work between two collectives that takes this many times the peers' time makes a rank late. Judgement: a hot expert
computes a multiple of the others' tokens; other segments vary by some percent."""
MOST_OF_EXCESS = 0.7
"""Experts make a rank late if their segments hold at least this share of its excess. Judgement: the rest is scatter."""
LEAST_ELSEWHERE = 0.15
"""Experts make a rank late only if at least this share of its work takes as long as its peers'; otherwise its device
may be slow. Judgement: attention and dense layers take more."""
LEAST_BUBBLE_PERCENT = 1.0
"""A pipeline bubble is not reported if twice as many microbatches save less than this share of the step. Judgement:
repeated runs differ by a percent."""
OPERATOR_FIXED_NS = 20_000
"""Self time of an operator of a CPU process that does not shrink with the microbatch, because it is dispatch.
Judgement: PyTorch dispatches an operator in 1 to 20 us while it is recorded."""
KERNEL_FIXED_NS = 3_000
"""Duration of a kernel that does not shrink with the microbatch. Judgement: an empty kernel takes 2 to 3 us."""
CLOSE_BUBBLE_PERCENT = 5.0
"""The measured bubble confirms the theoretical one if their shares of the step differ by at most this. Judgement: only
the confidence depends on it."""
