"""Find the logical device of a CPU that ran each op; TensorFlow records only the thread.

TensorFlow's executor runs one device's part of a function on any free threads. An `ExecutorState::Process` event (here
called executor process) contains ops of only one device. `_Send` and `_Recv` name their device:

    tf_Compute/1   Process │ MatMul │ Relu │ grad/_11:_Send  (from CPU:1 to CPU:0) │
    tf_Compute/2   Process │ MatMul │ BiasAdd │         → all of these belong to CPU:1

Ops that share no executor process with a `_Send` or `_Recv` are placed by the replica in their names.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from gpudiag.trace.readers.xspace.communication_names import Route, routes_of
from gpudiag.trace.readers.xspace.planes import ID, KEY, NODE, Plane

#: Number of the replica in an op's name, as `tf.distribute` writes it. Ops of the first replica have no number.
_REPLICA = re.compile(r"(?:^|/)(?:replica|update)_(\d{1,4})(?:[_/]|$)")
_OP = re.compile(r"[^:]+:\w+$")
_PROCESS = "ExecutorState::Process"
_NUMBER = re.compile(r"/_\d+$")
#: Devices of parameter servers, which train nothing.
_SERVER = re.compile(r"/job:ps/")
#: Ops on a variable, which run on the variable's device: the parameter server if there is one.
_OF_VARIABLE = re.compile(r":(?:Assign\w*|Read)VariableOp$")

NO_DEVICE = -1


def placed(plane: Plane) -> NDArray[np.int16]:
    """Return int16[n]: the logical device, from 0, that ran each op of a host; `NO_DEVICE` for all other events.

    No op is placed if there are fewer than two devices that send or receive tensors.
    """
    routes = {route.key: route for route in routes_of(plane)}
    known = {device for route in routes.values() for device in (route.source, route.target)}
    servers = {device for device in known if _SERVER.match(device)}
    devices = sorted(known - servers, key=_natural_order)
    device_of_event = np.full(len(plane.name), NO_DEVICE, np.int16)
    if len(devices) < 2:
        return device_of_event
    groups, ops = _group_ops(plane, routes, servers)
    index = {device: number for number, device in enumerate(devices)}
    for event, name, run in ops:  # ops on parameter servers stay `NO_DEVICE`
        replica = _REPLICA.search(name)
        fallback = devices[min(int(replica[1]) if replica else 0, len(devices) - 1)]
        device_of_event[event] = index.get(groups.device_of(name, run, fallback), NO_DEVICE)
    return device_of_event


def _group_ops(
    plane: Plane, routes: dict[str, Route], servers: set[str]
) -> tuple[_OpGroups, list[tuple[int, str, int]]]:
    """Return (groups of ops that ran on one device, list of (event, name, run of the function) of each op).

    Args:
        plane: the host's plane.
        routes: routes of tensors between devices, by key.
        servers: devices of parameter servers, on which the ops of variables run.
    """
    targets: dict[str, set[str]] = defaultdict(set)  # op → devices that receive its tensor
    ends: dict[str, set[str]] = defaultdict(set)  # op that produces or needs a sent tensor → its devices
    for route in routes.values():
        targets[route.tensor].add(route.target)
        ends[route.tensor].add(route.source)
        ends[route.consumer].add(route.target)
    keys, nodes = _text_stat(plane, KEY), _text_stat(plane, NODE)
    run_of = plane.whole(ID, 0)
    groups = _OpGroups()
    ops: list[tuple[int, str, int]] = []
    for event, process in _inside_processes(plane):
        name = plane.names[plane.name[event]]
        run = int(run_of[process])
        if event in keys and keys[event] in routes:
            groups.add_device(process, routes[keys[event]].source, run)
        elif _NUMBER.search(nodes.get(event, "")):  # a `_Recv`, whose node has the name of the op that sends the tensor
            receivers = targets[_NUMBER.sub("", nodes[event])]
            if len(receivers) == 1:
                groups.add_device(process, min(receivers), run)
        if _OP.match(name):
            groups.join(process, name)
            groups.add_candidates(
                name, servers if _OF_VARIABLE.search(name) else ends.get(name.rpartition(":")[0], set())
            )
            ops.append((event, name, run))
    return groups, ops


class _OpGroups:
    """Union-find of op names that ran in the same executor process, and the known devices of each group."""

    def __init__(self) -> None:
        self._parent: dict[str | int, str | int] = {}
        self._candidates: dict[str | int, set[str]] = defaultdict(set)
        self._devices_of_run: dict[int, set[str]] = defaultdict(set)
        self._devices_of_group: dict[str | int, set[str]] | None = None

    def _root(self, member: str | int) -> str | int:
        while (parent := self._parent.setdefault(member, member)) != member:
            self._parent[member] = self._parent[parent]
            member = parent
        return member

    def join(self, process: int, name: str) -> None:
        self._parent[self._root(name)] = self._root(process)

    def add_candidates(self, name: str, devices: set[str]) -> None:
        self._candidates[name] |= devices

    def add_device(self, process: int, device: str, run: int) -> None:
        self._candidates[process].add(device)
        self._devices_of_run[run].add(device)

    def device_of(self, name: str, run: int, fallback: str) -> str:
        """Return an op's device: that of its group if known, else that of the function's `run`, else `fallback`."""
        if self._devices_of_group is None:
            self._devices_of_group = defaultdict(set)
            for member, devices in self._candidates.items():
                self._devices_of_group[self._root(member)] |= devices
        devices = self._devices_of_group.get(self._root(name), set())
        if len(devices) != 1:  # unknown or ambiguous
            # Prefer candidates that the run is known to use, then the run's only device that is no server.
            of_run = self._devices_of_run.get(run, set())
            devices = (devices & of_run) or {device for device in of_run if not _SERVER.match(device)}
        return next(iter(devices)) if len(devices) == 1 else fallback


def _inside_processes(plane: Plane) -> list[tuple[int, int]]:
    """Return (event, innermost executor process around it) for each event inside an executor process."""
    process = plane.named(lambda name: name == _PROCESS)
    order = np.lexsort((-plane.end_ns, plane.start_ns, plane.line))
    pairs: list[tuple[int, int]] = []
    enclosing: list[int] = []
    for event in order.tolist():
        while enclosing and (
            plane.line[enclosing[-1]] != plane.line[event] or plane.end_ns[enclosing[-1]] <= plane.start_ns[event]
        ):
            enclosing.pop()
        if process[event]:
            enclosing.append(event)
        elif enclosing:
            pairs.append((event, enclosing[-1]))
    return pairs


def _text_stat(plane: Plane, stat: str) -> dict[int, str]:
    """Return event → text of a stat, for the events that have it."""
    if stat not in plane.stats:
        return {}
    events, refs = plane.stats[stat]
    return {event: plane.texts.get(ref, "") for event, ref in zip(events.tolist(), refs.tolist(), strict=True)}


def _natural_order(device: str) -> tuple[str | int, ...]:
    """Return a key that sorts `CPU:2` before `CPU:10`."""
    return tuple(int(word) if word.isdecimal() else word for word in re.split(r"(\d+)", device))
