"""Which of a CPU's logical devices ran each op: TensorFlow records the thread of an op, and not its device.

An executor runs the part of a function that one device has, on whichever threads are free. What one
`ExecutorState::Process` runs is of one device, so all ops that ever shared one are; `_Send` and `_Recv` name theirs:

    tf_Compute/1   Process │ MatMul │ Relu │ grad/_11:_Send  (from CPU:1 to CPU:0) │
    tf_Compute/2   Process │ MatMul │ BiasAdd │         → all of these are CPU:1's

Where a part of the function shares no such thread of work with either, the name of its replica tells.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from gpudiag.trace.readers.xspace.communication_names import routes_of
from gpudiag.trace.readers.xspace.planes import ID, KEY, NODE, Plane

#: The part of an op's name by which `tf.distribute` tells replicas apart; the first has none.
_REPLICA = re.compile(r"(?:^|/)(?:replica|update)_(\d{1,4})(?:[_/]|$)")
_OP = re.compile(r"[^:]+:\w+$")
_PROCESS = "ExecutorState::Process"
_NUMBER = re.compile(r"/_\d+$")
#: Devices that train nothing: a parameter server's.
_SERVER = re.compile(r"/job:ps/")
#: What reads or changes a variable runs where that lies: with a server, where there is one.
_OF_VARIABLE = re.compile(r":(?:Assign\w*|Read)VariableOp$")

NO_DEVICE = -1


def placed(plane: Plane) -> NDArray[np.int16]:
    """int16[n]: for each op of a host which of the logical devices ran it, from 0; `NO_DEVICE` for all other events.

    Nothing is placed where fewer than two devices send each other anything.
    """
    routes = {route.key: route for route in routes_of(plane)}
    known = {device for route in routes.values() for device in (route.source, route.target)}
    servers = {device for device in known if _SERVER.match(device)}
    devices = sorted(known - servers, key=_in_order)
    place = np.full(len(plane.name), NO_DEVICE, np.int16)
    if len(devices) < 2:
        return place
    targets: dict[str, set[str]] = defaultdict(set)
    ends: dict[str, set[str]] = defaultdict(set)
    for route in routes.values():
        targets[route.tensor].add(route.target)
        ends[route.tensor].add(route.source)
        ends[route.consumer].add(route.target)
    sent, begun = _words(plane, KEY), _words(plane, NODE)
    run = plane.whole(ID, 0)
    groups = _Groups()
    of_op: list[tuple[int, str, int]] = []
    for event, process in _inside_processes(plane):
        name = plane.names[plane.name[event]]
        if event in sent and sent[event] in routes:
            groups.tell(process, routes[sent[event]].source, int(run[process]))
        elif _NUMBER.search(begun.get(event, "")):
            where = targets[_NUMBER.sub("", begun[event])]
            if len(where) == 1:
                groups.tell(process, min(where), int(run[process]))
        if _OP.match(name):
            groups.join(process, name)
            groups.may_be(name, servers if _OF_VARIABLE.search(name) else ends.get(name.rpartition(":")[0], set()))
            of_op.append((event, name, int(run[process])))
    index = {device: number for number, device in enumerate(devices)}
    for event, name, number in of_op:
        replica = _REPLICA.search(name)
        usual = devices[min(int(replica[1]) if replica else 0, len(devices) - 1)]
        place[event] = index.get(groups.device_of(name, number, usual), NO_DEVICE)
    return place


class _Groups:
    """Ops by name that ran in the same work of an executor, and the devices that are known of them and of runs."""

    def __init__(self) -> None:
        self._parent: dict[str | int, str | int] = {}
        self._told: dict[str | int, set[str]] = defaultdict(set)
        self._of_run: dict[int, set[str]] = defaultdict(set)
        self._known: dict[str | int, set[str]] | None = None

    def _first(self, one: str | int) -> str | int:
        while (above := self._parent.setdefault(one, one)) != one:
            self._parent[one] = self._parent[above]
            one = above
        return one

    def join(self, process: int, name: str) -> None:
        self._parent[self._first(name)] = self._first(process)

    def may_be(self, name: str, devices: set[str]) -> None:
        self._told[name] |= devices

    def tell(self, process: int, device: str, run: int) -> None:
        self._told[process].add(device)
        self._of_run[run].add(device)

    def device_of(self, name: str, run: int, usual: str) -> str:
        """The device of an op. Where several run ops of this name (workers of one function), that of this run."""
        if self._known is None:
            self._known = defaultdict(set)
            for one, devices in self._told.items():
                self._known[self._first(one)] |= devices
        known = self._known.get(self._first(name), set())
        if len(known) != 1:
            here = self._of_run.get(run, set())
            known = (known & here) or {device for device in here if not _SERVER.match(device)}
        return next(iter(known)) if len(known) == 1 else usual


def _inside_processes(plane: Plane) -> list[tuple[int, int]]:
    """Each event that lies within an executor's work, and the innermost such work around it."""
    process = np.array([name == _PROCESS for name in plane.names], np.bool_)[plane.name]
    order = np.lexsort((-plane.end_ns, plane.start_ns, plane.line))
    found: list[tuple[int, int]] = []
    around: list[int] = []
    for event in order.tolist():
        while around and (
            plane.line[around[-1]] != plane.line[event] or plane.end_ns[around[-1]] <= plane.start_ns[event]
        ):
            around.pop()
        if process[event]:
            around.append(event)
        elif around:
            found.append((event, around[-1]))
    return found


def _words(plane: Plane, stat: str) -> dict[int, str]:
    if stat not in plane.stats:
        return {}
    events, refs = plane.stats[stat]
    return {event: plane.texts.get(ref, "") for event, ref in zip(events.tolist(), refs.tolist(), strict=True)}


def _in_order(device: str) -> tuple[str | int, ...]:
    """`CPU:2` before `CPU:10`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", device))
