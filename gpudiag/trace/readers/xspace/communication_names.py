"""Find the copies and ops by which TensorFlow communicates between devices without NCCL.

If an op on another device needs a tensor, the tensor passes through two ops, `_Send` and `_Recv`, with a common key.
The profiler adds the key to the copy of the tensor, with the producing op (`from`) and the consuming op (`to`):

    /job:localhost/replica:0/task:0/device:GPU:1;7685745f;/job:localhost/replica:0/task:0/device:CPU:0;edge_16904_…;0:0

A reduction on the CPU therefore consists of copies from several GPUs `to` one op on the CPU (`sgd/AddN_7`), and of
copies of this op's result back to each GPU. A copy from a single GPU to the host (a loss to be printed), or from the
host to a single GPU (a batch), is not communication.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.trace.readers.xspace.planes import FROM, KEY, NODE, OP, TO, Plane

#: Process and device in a key: `/job:worker/replica:0/task:1` and `CPU:0` or `GPU:0`.
_DEVICE = re.compile(r"(?P<task>.*)/device:(?P<device>(?P<kind>[A-Za-z_]+):\d+)$")
#: Scope in which jobs of `gpudiag profile` copy, add and scale gradients.
_GPUDIAG_SCOPE = re.compile(r"(?:^|/)gpudiag\.exchange/")
#: An op that reads a variable. If one device has the variable, all devices need its value.
_READ = re.compile(r"(?:^|/)ReadVariableOp(?:_\d+)?$")
#: Number in the name of a `_Recv`, after the name of the op whose result it receives: `sgd/AddN_7/_1546`.
_NUMBER = re.compile(r"/_\d+$")
_HOST = "CPU"


class Route(msgspec.Struct, frozen=True):
    """The route of a tensor, from the op `tensor` on device `source` to the op `consumer` on device `target`."""

    key: str
    tensor: str
    consumer: str
    source: str
    target: str
    from_host: bool
    to_host: bool
    between_processes: bool

    @property
    def between_peers(self) -> bool:
        """Return whether the route is between GPUs, or (without GPUs) between the CPU's logical devices."""
        return self.from_host == self.to_host


class CommunicationNames(msgspec.Struct, frozen=True, kw_only=True):
    """TensorFlow's names of tensors and ops that take part in communication.

    Attributes:
        keys: keys of communicating copies and of ops that send.
        tensors: ops whose results are sent.
        sums: ops that add tensors from several devices.
        consumers: ops that need sent tensors.
    """

    keys: frozenset[str] = frozenset()
    tensors: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    consumers: frozenset[str] = frozenset()

    def sends(self, plane: Plane) -> NDArray[np.bool_]:
        """Return bool[n]: whether each event is a copy or op that transfers a communicated tensor."""
        return _with_stat(plane, KEY, self.keys)

    def adds(self, plane: Plane) -> NDArray[np.bool_]:
        """Return bool[n]: whether each event adds tensors of several devices, or belongs to `_GPUDIAG_SCOPE`."""
        return _belong_to(plane, self.sums | {op for op in map(_op_of, _op_texts(plane)) if _GPUDIAG_SCOPE.search(op)})

    def needs(self, plane: Plane) -> NDArray[np.bool_]:
        """Return bool[n]: whether each event is an op, kernel or copy that can begin only after a communication."""
        return _belong_to(plane, self.consumers)

    def receives(self, plane: Plane) -> NDArray[np.bool_]:
        """Return bool[n]: whether each event begins a host's wait for a communicated tensor."""
        numbered = [text for text in plane.texts.values() if _NUMBER.search(text)]
        return _with_stat(plane, NODE, [text for text in numbered if _NUMBER.sub("", text) in self.tensors])


def find_communication(planes: Sequence[Plane]) -> CommunicationNames:
    """Find the communication of one process from the routes of its copies and of its host's ops."""
    routes = {route.key: route for plane in planes for route in routes_of(plane)}.values()
    sent_to: dict[str, set[str]] = defaultdict(set)
    for route in routes:
        # Between peers, the consumer adds the received value to the value of its own device.
        sent_to[route.consumer] |= {route.source, route.target} if route.between_peers else {route.source}
    forwarded = {route.tensor for route in routes}  # the result of a sum is sent to a device again
    sums = {consumer for consumer, devices in sent_to.items() if len(devices) > 1} & forwarded
    communicated = [route for route in routes if _communicates(route, sums)]
    return CommunicationNames(
        keys=frozenset(route.key for route in communicated),
        tensors=frozenset(route.tensor for route in communicated),
        sums=frozenset(sums),
        consumers=frozenset(route.consumer for route in communicated),
    )


def _communicates(route: Route, sums: set[str]) -> bool:
    if route.between_processes or route.between_peers or route.consumer in sums:
        return True
    return route.from_host and (route.tensor in sums or _READ.search(route.tensor) is not None)


def feeds_devices(plane: Plane) -> NDArray[np.bool_]:
    """Return bool[n]: whether each event is a copy by which a multi-device loader gives a device its batches."""
    return _with_stat(plane, OP, [text for text in plane.texts.values() if text.endswith(":RemoteCall")])


def routes_of(plane: Plane) -> Iterable[Route]:
    """Yield the distinct routes of a plane's events."""
    missing = -1
    columns = np.stack([plane.whole(stat, missing) for stat in (KEY, FROM, TO)])
    for key, tensor, consumer in np.unique(columns[:, columns[0] != missing], axis=1).T.tolist():
        text = plane.texts.get(key, "")  # `source;…;target;…`, see above
        source, _, rest = text.partition(";")
        _, _, rest = rest.partition(";")
        target, _, _ = rest.partition(";")
        begin, end = _DEVICE.match(source), _DEVICE.match(target)
        if begin and end and source != target:
            yield Route(
                key=text,
                tensor=plane.texts.get(tensor, ""),
                consumer=plane.texts.get(consumer, ""),
                source=source,
                target=target,
                from_host=begin["kind"] == _HOST,
                to_host=end["kind"] == _HOST,
                between_processes=begin["task"] != end["task"],
            )


def _with_stat(plane: Plane, stat: str, values: Iterable[str]) -> NDArray[np.bool_]:
    """Return bool[n]: whether each event has this stat with one of these values."""
    chosen = np.zeros(len(plane.name), np.bool_)
    if stat in plane.stats:
        events, refs = plane.stats[stat]
        wanted = set(values)
        chosen[events[np.isin(refs, [ref for ref, text in plane.texts.items() if text in wanted])]] = True
    return chosen


def _op_texts(plane: Plane) -> Iterable[str]:
    return plane.names if plane.device is None else plane.texts.values()


def _belong_to(plane: Plane, ops: frozenset[str]) -> NDArray[np.bool_]:
    """Return bool[n]: whether each event is one of these ops (on a host) or work for one of these ops (on a GPU)."""
    if plane.device is not None:
        return _with_stat(plane, OP, [text for text in _op_texts(plane) if _op_of(text) in ops])
    return plane.named(lambda name: _op_of(name) in ops)


def _op_of(name: str) -> str:
    """Return the op (`scope/op`) of an event that is named `scope/op:Type`."""
    return name.rpartition(":")[0]
