"""Which copies and ops carry tensors from one device to another: TensorFlow's exchange where it is not NCCL's.

A tensor that an op on another device needs goes through a pair of ops, `_Send` and `_Recv`, that meet at a key. The
profiler gives it to the copy that carries the tensor, with the op it comes `from` and the op it goes `to`:

    /job:localhost/replica:0/task:0/device:GPU:1;7685745f;/job:localhost/replica:0/task:0/device:CPU:0;edge_16904_…;0:0

So a reduction on the CPU shows as copies from several GPUs `to` one op there (`sgd/AddN_7`), and as copies of that op's
result back to each of them. A copy that goes to the host from one GPU alone (a loss to be printed), or from it to one
GPU (a batch), exchanges nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.trace.readers.xspace.planes import FROM, KEY, NODE, OP, TO, Plane

#: A device in a key, with the process that it belongs to: `/job:worker/replica:0/task:1` and `CPU` or `GPU:0`.
_DEVICE = re.compile(r"(?P<task>.*)/device:(?P<device>(?P<kind>[A-Za-z_]+):\d+)$")
#: The scope in which gradients are packed, added and scaled by `gpudiag profile`'s jobs.
_OWN = re.compile(r"(?:^|/)gpudiag\.exchange/")
#: The result of a variable's read, which every device needs where the variable lies on one.
_READ = re.compile(r"(?:^|/)ReadVariableOp(?:_\d+)?$")
#: `_Recv` is named after the op whose result it waits for, with a number of its own: `sgd/AddN_7/_1546`.
_NUMBER = re.compile(r"/_\d+$")
_HOST = "CPU"


class Route(msgspec.Struct, frozen=True):
    """A tensor's way from one op to another: their names, the devices, and the kinds of these."""

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
        """From a GPU to another; without GPUs, from one of the CPU's logical devices to another."""
        return self.from_host == self.to_host


class CommunicationNames(msgspec.Struct, frozen=True, kw_only=True):
    """What takes part in an exchange, by the names that TensorFlow gives it.

    Attributes:
        keys: keys of copies and of ops that send.
        tensors: ops whose results are sent.
        sums: ops that add up what several devices sent.
    consumers: ops that need what was sent.
    """

    keys: frozenset[str] = frozenset()
    tensors: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    consumers: frozenset[str] = frozenset()

    def sends(self, plane: Plane) -> NDArray[np.bool_]:
        """bool[n]: the copies and ops that carry a tensor of an exchange."""
        return _told(plane, KEY, self.keys)

    def adds(self, plane: Plane) -> NDArray[np.bool_]:
        """bool[n]: the ops, or the kernels of ops, that add up what devices sent, or that our own jobs mark as such."""
        return _of_ops(plane, self.sums | {op for op in map(_op, _op_events(plane)) if _OWN.search(op)})

    def needs(self, plane: Plane) -> NDArray[np.bool_]:
        """bool[n]: the ops, or the kernels and copies of ops, that could not begin before an exchange had ended."""
        return _of_ops(plane, self.consumers)

    def receives(self, plane: Plane) -> NDArray[np.bool_]:
        """bool[n]: the begin of a host's wait for such a tensor."""
        numbered = [text for text in plane.texts.values() if _NUMBER.search(text)]
        return _told(plane, NODE, [text for text in numbered if _NUMBER.sub("", text) in self.tensors])


def find_communication(planes: Sequence[Plane]) -> CommunicationNames:
    """The exchanges of one process, from the routes of its copies and of its hosts' ops."""
    routes = {route.key: route for plane in planes for route in routes_of(plane)}.values()
    sent_to: dict[str, set[str]] = defaultdict(set)
    for route in routes:
        # An op on a GPU or logical device adds what its peers sent to what that device has itself.
        sent_to[route.consumer] |= {route.source, route.target} if route.between_peers else {route.source}
    passed_on = {route.tensor for route in routes}
    sums = {consumer for consumer, devices in sent_to.items() if len(devices) > 1} & passed_on
    chosen = [
        route
        for route in routes
        if route.between_processes
        or route.between_peers
        or route.consumer in sums
        or (route.from_host and (route.tensor in sums or _READ.search(route.tensor)))
    ]
    return CommunicationNames(
        keys=frozenset(route.key for route in chosen),
        tensors=frozenset(route.tensor for route in chosen),
        sums=frozenset(sums),
        consumers=frozenset(route.consumer for route in chosen),
    )


def of_loader(plane: Plane) -> NDArray[np.bool_]:
    """bool[n]: the copies for the function that gives a device its batches, of a loader that feeds several."""
    return _told(plane, OP, [text for text in plane.texts.values() if text.endswith(":RemoteCall")])


def routes_of(plane: Plane) -> Iterable[Route]:
    """The distinct routes of a plane's events."""
    missing = -1
    columns = np.stack([plane.whole(stat, missing) for stat in (KEY, FROM, TO)])
    for key, tensor, consumer in np.unique(columns[:, columns[0] != missing], axis=1).T.tolist():
        text = plane.texts.get(key, "")
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


def _told(plane: Plane, stat: str, words: Iterable[str]) -> NDArray[np.bool_]:
    """bool[n]: the events of which this stat is one of these words."""
    found = np.zeros(len(plane.name), np.bool_)
    if stat in plane.stats:
        events, values = plane.stats[stat]
        wanted = set(words)
        refs = [ref for ref, text in plane.texts.items() if text in wanted]
        found[events[np.isin(values, refs)]] = True
    return found


def _op_events(plane: Plane) -> Iterable[str]:
    return plane.names if plane.device is None else plane.texts.values()


def _of_ops(plane: Plane, ops: frozenset[str]) -> NDArray[np.bool_]:
    """bool[n]: a host's events of these ops, or what a GPU did for them; both are named `scope/op:Type`."""
    if plane.device is not None:
        return _told(plane, OP, [text for text in _op_events(plane) if _op(text) in ops])
    found = np.fromiter((_op(name) in ops for name in plane.names), np.bool_, len(plane.names))
    return found[plane.name] if len(found) else np.zeros(len(plane.name), np.bool_)


def _op(name: str) -> str:
    """The op of an event that is named `scope/op:Type`."""
    return name.rpartition(":")[0]
