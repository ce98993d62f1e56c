"""Draw random graphs of a few nodes, and simulate them node by node, using only the formulas in graph.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from gpudiag.analysis.diagnosis.simulation.graph import NONE, DeviceNodes, Graph, HostBlock, HostNodes
from gpudiag.model.timeline import OpClass

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.simulation.graph import Scenario

STREAMS = (0, 1)


@dataclass
class Node:
    """A host node that works for `busy` ns and waits for input for `input` ns.

    It ends at least `block_delay` ns after the end of the op `block_on` (or `NONE`). If that op is launched by this or
    a later node, its end in the previous iteration counts.
    """

    process: int
    busy: int
    input: int = 0
    block_on: int = NONE
    block_delay: int = 0


@dataclass
class Op:
    """A device op; times are in ns.

    Attributes:
        launch: the node that launches the op.
        latency: least time from the launching node's end to the op's start.
        gap: least time from the end of the stream's previous op, and of `waits`, to the op's start.
        duration: duration of the op; of a collective, from the last member's start.
        waits: ops that must end before the op starts; of a later op, the end in the previous iteration counts.
        joins: all members of the op's collective; empty for other ops.
    """

    process: int
    stream: int
    launch: int
    latency: int
    gap: int
    duration: int
    waits: tuple[int, ...] = ()
    joins: list[int] = field(default_factory=list)


@dataclass
class Job:
    """Nodes and ops of all processes in program order; indices in a node or op refer to these lists."""

    nodes: list[Node] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def last_op(self, process: int, stream: int) -> int:
        """Return the index of the last op enqueued on a stream, or NONE."""
        indices = [i for i, op in enumerate(self.ops) if (op.process, op.stream) == (process, stream)]
        return indices[-1] if indices else NONE


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw up to three processes, each of which launches on two streams.

    An op may wait for the other stream, a host may wait for a stream's last op, and collectives are on the second
    stream.
    """
    processes = draw(st.integers(1, 3))
    job = Job()
    small = st.integers(0, 9)
    for _ in range(draw(st.integers(0, 3))):
        for process in range(processes):
            for what in draw(st.lists(st.sampled_from(["launch", "launch", "wait", "sync"]), min_size=1, max_size=4)):
                stream = draw(st.sampled_from(STREAMS))
                job.nodes.append(Node(process, draw(small), input=draw(st.sampled_from([0, 0, 0, 25]))))
                if what == "sync":
                    job.nodes[-1].block_on = job.last_op(process, stream)
                    job.nodes[-1].block_delay = draw(small)
                    continue
                other = job.last_op(process, 1 - stream)
                job.ops.append(
                    Op(
                        process,
                        stream,
                        launch=len(job.nodes) - 1,
                        latency=draw(st.integers(-2, 5)),
                        gap=draw(st.integers(0, 3)),
                        duration=draw(st.integers(0, 20)),
                        waits=(other,) if what == "wait" and other != NONE else (),
                    )
                )
        members = []
        for process in range(processes):
            job.nodes.append(Node(process, draw(small)))
            waited = job.last_op(process, 0)
            members.append(len(job.ops))
            job.ops.append(
                Op(
                    process,
                    1,
                    launch=len(job.nodes) - 1,
                    latency=draw(st.integers(0, 5)),
                    gap=draw(st.integers(0, 3)),
                    duration=draw(st.integers(0, 20)),
                    waits=(waited,) if draw(st.booleans()) and waited != NONE else (),
                )
            )
        for member in members:
            job.ops[member].joins = members
    for process in range(processes):
        job.nodes.append(Node(process, draw(st.integers(1, 9))))
    for process in range(processes):
        # The first op may wait for the previous iteration's last op of the other stream, the host for that of stream 1.
        first = next((j for j, op in enumerate(job.ops) if op.process == process and not op.joins), NONE)
        last = NONE if first == NONE else job.last_op(process, 1 - job.ops[first].stream)
        if last > first and not job.ops[first].waits and draw(st.booleans()):
            job.ops[first].waits = (last,)
        node = next(i for i, n in enumerate(job.nodes) if n.process == process)
        last = job.last_op(process, 1)
        if last != NONE and job.nodes[node].block_on == NONE and draw(st.booleans()):
            job.nodes[node].block_on = last
    return job


class BruteForce:
    """Simulate iteration by iteration, using each node's formula.

    `costs` are the times of the scenario to simulate, by position in the job's graph (None: the job's own times).
    `order` is the indices of the job's nodes and ops in the order of the graph (None: the orders are equal).
    """

    def __init__(
        self, job: Job, costs: Scenario | None = None, order: tuple[list[int], list[int]] | None = None
    ) -> None:
        self.job = job
        host, device = order or (list(range(len(job.nodes))), list(range(len(job.ops))))
        # Costs are indexed by position in the graph, and lists of the job by program order.
        position = {index: at for at, index in enumerate(host)}
        op_position = {index: at for at, index in enumerate(device)}
        self.work = [
            n.busy + n.input if costs is None else float(costs.busy[position[i]] + costs.waiting[position[i]])
            for i, n in enumerate(job.nodes)
        ]
        self.blocking = [
            n.block_on != NONE and (costs is None or bool(costs.blocking[position[i]])) for i, n in enumerate(job.nodes)
        ]
        self.duration: list[float] = []
        for i, op in enumerate(job.ops):
            column = None if costs is None else (costs.transfer if op.joins else costs.duration)
            self.duration.append(op.duration if column is None else float(column[op_position[i]]))
        self.time = [0.0] * len(job.nodes)
        self.start = [0.0] * len(job.ops)
        self.end = [0.0] * len(job.ops)

    def turn(self) -> None:
        """Run one iteration: compute each node's time and each op's start and end from this and the last iteration."""
        job = self.job
        before_node = self._before([n.process for n in job.nodes])
        before_op = self._before([(op.process, op.stream) for op in job.ops])
        old_time, old_end = list(self.time), list(self.end)
        done_nodes: set[int] = set()
        done_starts: set[int] = set()
        done_ends: set[int] = set()

        def node(i: int) -> float:
            """Return the time in ns at which host node i ends in this iteration."""
            if i not in done_nodes:
                done_nodes.add(i)
                before = before_node[i]
                t = (old_time[before] if before >= i else node(before)) + self.work[i]
                if self.blocking[i]:
                    waited = job.nodes[i].block_on
                    later = job.ops[waited].launch >= i
                    t = max(t, (old_end[waited] if later else end(waited)) + job.nodes[i].block_delay)
                self.time[i] = t
            return self.time[i]

        def start(j: int) -> float:
            """Return the time in ns at which op j starts in this iteration."""
            if j not in done_starts:
                done_starts.add(j)
                op, before = job.ops[j], before_op[j]
                free = max(
                    [
                        old_end[before] if before >= j else end(before),
                        *(old_end[w] if w > j else end(w) for w in op.waits),
                    ]
                )
                self.start[j] = max(node(op.launch) + op.latency, free + op.gap)
            return self.start[j]

        def end(j: int) -> float:
            if j not in done_ends:
                done_ends.add(j)
                self.end[j] = max(start(p) for p in job.ops[j].joins or [j]) + self.duration[j]
            return self.end[j]

        for i in range(len(job.nodes)):
            node(i)
        for j in range(len(job.ops)):
            end(j)

    @staticmethod
    def _before(keys: list[object]) -> list[int]:
        """Return for each index the previous index with an equal key, or else the last index with that key."""
        return [
            max((k for k in range(i) if keys[k] == key), default=max(k for k in range(len(keys)) if keys[k] == key))
            for i, key in enumerate(keys)
        ]

    def turns(self, count: int) -> float:
        """Return the time per iteration of the slowest process in ns, over the last half of `count` iterations."""
        for _ in range(count // 2):
            self.turn()
        before = [*self.time, *self.end]
        for _ in range(count - count // 2):
            self.turn()
        return max(b - a for a, b in zip(before, [*self.time, *self.end], strict=True)) / (count - count // 2)


def graph_of(job: Job, settled_turns: int) -> tuple[Graph, tuple[list[int], list[int]]]:
    """Return the job's graph, as measured after `settled_turns` iterations, and its `order` as in `BruteForce`."""
    brute = BruteForce(job)
    for _ in range(settled_turns):
        brute.turn()
    before = [*brute.time, *brute.end]
    brute.turn()
    length = max(b - a for a, b in zip(before, [*brute.time, *brute.end], strict=True))
    processes = sorted({n.process for n in job.nodes})
    nodes = [i for q in processes for i, n in enumerate(job.nodes) if n.process == q]
    streams = sorted({(op.process, op.stream) for op in job.ops})
    ops = [j for key in streams for j, op in enumerate(job.ops) if (op.process, op.stream) == key]
    at_node = {index: at for at, index in enumerate(nodes)} | {NONE: NONE}
    at_op = {index: at for at, index in enumerate(ops)} | {NONE: NONE}
    host = HostNodes(
        time=np.array([brute.time[i] for i in nodes], np.float64),
        busy=np.array([job.nodes[i].busy for i in nodes], np.float64),
        input=np.array([job.nodes[i].input for i in nodes], np.float64),
        before_first_op=np.zeros(len(nodes)),
        untraced=np.zeros(len(nodes)),
        slow=np.zeros(len(nodes)),
        allocating=np.zeros(len(nodes)),
        profiler=np.zeros(len(nodes)),
        events=np.ones(len(nodes), np.int64),
        block=np.array([HostBlock.SYNC if job.nodes[i].block_on != NONE else HostBlock.NOT for i in nodes], np.uint8),
        block_on=np.array([at_op[job.nodes[i].block_on] for i in nodes], np.int64),
        block_delay=np.array([job.nodes[i].block_delay for i in nodes], np.float64),
        row=np.zeros(len(nodes), np.int64),
        process=np.array([job.nodes[i].process for i in nodes], np.int64),
        step=np.zeros(len(nodes), np.int64),
    )
    start = np.array([brute.start[j] for j in ops], np.float64)
    end = np.array([brute.end[j] for j in ops], np.float64)
    joins = {
        at: np.array([at_op[p] for p in job.ops[j].joins], np.int64) for at, j in enumerate(ops) if job.ops[j].joins
    }
    transfer = np.full(len(ops), np.nan)
    for at, peers in joins.items():
        transfer[at] = end[at] - start[peers].max()
    device = DeviceNodes(
        start=start,
        end=end,
        launch=np.array([at_node[job.ops[j].launch] for j in ops], np.int64),
        latency=np.array([job.ops[j].latency for j in ops], np.float64),
        gap=np.array([job.ops[j].gap for j in ops], np.float64),
        wait_a=np.array([at_op[(*job.ops[j].waits, NONE)[0]] for j in ops], np.int64),
        wait_b=np.full(len(ops), NONE, np.int64),
        transfer=transfer,
        peers=joins,
        op_class=np.array([OpClass.COMMUNICATION if job.ops[j].joins else OpClass.COMPUTE for j in ops], np.uint8),
        host_copy=np.zeros(len(ops), np.bool_),
        track=np.array([job.ops[j].process for j in ops], np.int64),
        step=np.zeros(len(ops), np.int64),
        row=np.zeros(len(ops), np.int64),
    )
    graph = Graph(
        host=host,
        device=device,
        chains=_spans([job.nodes[i].process for i in nodes]),
        streams=_spans([(job.ops[j].process, job.ops[j].stream) for j in ops]),
        steps=1,
        length_ns=length,
        ranks={q: q for q in processes},
    )
    return graph, (nodes, ops)


def _spans(keys: list[object]) -> tuple[tuple[int, int], ...]:
    edges = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]]
    return tuple(pairwise([*edges, len(keys)]))
