"""Decode the events of an XSpace from bytes to columns, all at once.

A trace of a few steps has hundreds of thousands of XEvents with several XStats each. Decoding them as Python objects
would take longer than all other reading, so NumPy decodes one field of all events at a time. A field in protobuf's wire
format (protobuf.dev/programming-guides/encoding) begins with a varint of its number and type. Its value follows: a
varint, eight bytes, four bytes, or a length and as many bytes.

    event     08 07        10 e8 07          18 90 4e          22 04 | 08 03 18 2a
    field     1: 7         2: 1000           3: 10000          4: 4 bytes, an XStat: 1: 3   3: 42
              metadata_id  offset_ps         duration_ps       stat    its metadata_id      uint64_value
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

_VARINT, _EIGHT_BYTES, _COUNTED, _FOUR_BYTES = 0, 1, 2, 5
#: Number of bytes appended after the last event: `_varints` reads up to 16 bytes beyond an event, and eight are spare.
_MARGIN = 24
#: Maximum number of fields of a valid event. TensorFlow writes about twenty.
_MOST_FIELDS = 4096

#: Fields of an XEvent.
_METADATA_ID, _OFFSET, _DURATION, _STAT, _OCCURRENCES = 1, 2, 3, 4, 5
#: Whether the field of an XStat with this number is an integer (uint64_value, int64_value, ref_value). The last entry
#: stands for all higher numbers too.
_IS_WHOLE = np.array([False, False, False, True, True, False, False, True, False])
_METADATA_ID_TAG = _METADATA_ID << 3 | _VARINT

_NO_BODY = -1

#: Number of events decoded at once, so that their columns stay in the processor's caches.
_BATCH = 16384


class WireError(ValueError):
    """The bytes are not an XEvent."""


class RawEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of n events, and of m stats of these events.

    Attributes:
        metadata_id: int64[n], 0 if the event has none.
        offset_ps: int64[n], start of the event since its line's begin.
        duration_ps: int64[n].
        aggregated: bool[n], whether the event is a count of occurrences without a time.
        stat_event: int64[m], index of the stat's event, in no particular order.
        stat_id: int64[m], the stat's metadata id.
        stat_value: int64[m], the stat's value if it is an integer or a reference to a text, else 0.
    """

    metadata_id: NDArray[np.int64]
    offset_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    aggregated: NDArray[np.bool_]
    stat_event: NDArray[np.int64]
    stat_id: NDArray[np.int64]
    stat_value: NDArray[np.int64]


def decode_events(events: Sequence[bytes], wanted_stats: Collection[int], bare: Collection[int] = ()) -> RawEvents:
    """Decode serialized XEvents, and their stats with the wanted metadata ids.

    Args:
        events: serialized XEvents.
        wanted_stats: metadata ids of stats.
        bare: metadata ids of events without wanted stats. Fields of such events are decoded only up to the first stat,
            because protobuf writes fields in the order of their numbers.

    Raises:
        WireError: the bytes are invalid.
    """
    batches = [_decode(events[begin : begin + _BATCH], wanted_stats, bare) for begin in range(0, len(events), _BATCH)]
    if not batches:
        return _decode([], wanted_stats, bare)
    for index, batch in enumerate(batches):
        batch.stat_event[:] += index * _BATCH
    names = RawEvents.__struct_fields__
    return RawEvents(**{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names})


def _decode(events: Sequence[bytes], wanted_stats: Collection[int], bare: Collection[int]) -> RawEvents:
    """Decode one batch of events; see `decode_events`."""
    lengths = np.fromiter(map(len, events), np.int64, len(events))
    text = np.frombuffer(b"".join((*events, bytes(_MARGIN))), np.uint8)
    ends = np.cumsum(lengths)
    columns = {number: np.zeros(len(events), np.int64) for number in (_METADATA_ID, _OFFSET, _DURATION)}
    aggregated = np.zeros(len(events), np.bool_)
    bare_ids, done = np.array(sorted(bare), np.int64), np.zeros(len(events), np.bool_)
    none = np.empty(0, np.int64)
    owner, begin, stop = [none], [none], [none]
    for event, field, value, body in _fields(text, ends - lengths, ends, done):
        plain = body == _NO_BODY
        for number, column in columns.items():
            chosen = plain & (field == number)
            column[event[chosen]] = value[chosen]
        aggregated[event[plain & (field == _OCCURRENCES)]] = True
        stats = ~plain & (field == _STAT)
        if len(bare_ids):
            # The first stat of a bare event ends its decoding.
            closed = stats & np.isin(columns[_METADATA_ID][event], bare_ids)
            done[event[closed]] = True
            stats &= ~closed
        owner.append(event[stats])
        begin.append(body[stats])
        stop.append(body[stats] + value[stats])
    stat_event, stat_id, stat_value = _stats(
        text, np.concatenate(owner), np.concatenate(begin), np.concatenate(stop), wanted_stats
    )
    return RawEvents(
        metadata_id=columns[_METADATA_ID],
        offset_ps=columns[_OFFSET],
        duration_ps=columns[_DURATION],
        aggregated=aggregated,
        stat_event=stat_event,
        stat_id=stat_id,
        stat_value=stat_value,
    )


def _stats(
    text: NDArray[np.uint8],
    owner: NDArray[np.int64],
    begin: NDArray[np.int64],
    stop: NDArray[np.int64],
    wanted: Collection[int],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (event, metadata id, integer value) of each wanted XStat.

    Args:
        text: the bytes, followed by a margin.
        owner, begin, stop: int64[m], event of each XStat, and its begin and end in `text`.
        wanted: metadata ids of stats.
    """
    ids = np.array(sorted(wanted), np.int64)
    # The id is nearly always the first field, so most unwanted stats are discarded by their first field alone.
    first = np.flatnonzero(text[begin] == _METADATA_ID_TAG)
    other, _ = _varints(text, begin[first] + 1)
    kept_stats = np.ones(len(begin), np.bool_)
    kept_stats[first[~np.isin(other, ids)]] = False
    owner, begin, stop = owner[kept_stats], begin[kept_stats], stop[kept_stats]
    ident, number = np.zeros(len(begin), np.int64), np.zeros(len(begin), np.int64)
    for stat, field, value, body in _fields(text, begin, stop, np.zeros(len(begin), np.bool_)):
        plain = body == _NO_BODY
        names = plain & (field == _METADATA_ID)
        ident[stat[names]] = value[names]
        whole = plain & _IS_WHOLE[np.minimum(field, len(_IS_WHOLE) - 1)]
        number[stat[whole]] = value[whole]
    kept = np.isin(ident, ids)
    return owner[kept], ident[kept], number[kept]


def _fields(
    text: NDArray[np.uint8], begin: NDArray[np.int64], stop: NDArray[np.int64], done: NDArray[np.bool_]
) -> Iterator[Columns]:
    """Yield the first fields of all messages, then the second fields of messages with several fields, and so on.

    Args:
        text: the bytes, followed by a margin.
        begin, stop: int64[n], begin and end of each message in `text`.
        done: bool[n], whether no further field of a message is wanted; the caller may set elements while iterating.

    Yields:
        Columns of equal length: message; field number; value (for a field of counted bytes, their number); begin of
        the counted bytes (`_NO_BODY` for other fields). Fields of eight or four bytes are left out.

    Raises:
        WireError: a field has an unknown type or extends beyond its message.
    """
    message = np.arange(len(begin))
    position = begin
    for _ in range(_MOST_FIELDS):
        inside = (position < stop) & ~done[message]
        message, position, stop = message[inside], position[inside], stop[inside]
        if len(message) == 0:
            return
        tag, size = _varints(text, position)
        kind, field = tag & 7, tag >> 3
        position = position + size
        value, size = _varints(text, position)
        counted = kind == _COUNTED
        body = np.where(counted, position + size, _NO_BODY)
        length = np.where(counted, value, 0)
        # Compare before adding, because a broken length may be negative, or so large that the sum overflows.
        if (length < 0).any() or (length > stop - position).any():
            raise WireError("an event is cut short")
        plain = counted | (kind == _VARINT)
        if plain.all():
            position = position + size + length
        else:
            if not (plain | (kind == _EIGHT_BYTES) | (kind == _FOUR_BYTES)).all():
                raise WireError("an event has a field of no known type")
            position = position + np.where(plain, size + length, np.where(kind == _EIGHT_BYTES, 8, 4))
        if (position > stop).any():
            raise WireError("an event is cut short")
        if plain.all():
            yield message, field, value, body
        else:
            yield message[plain], field[plain], value[plain], body[plain]
    raise WireError("an event has too many fields")


_STOPS = np.uint64(0x8080808080808080)
_SEVENS = np.uint64(0x7F7F7F7F7F7F7F7F)
#: (Mask of low groups, mask of high groups, bits between them) for joining groups of 7 bits to 14, 28 and 56 bits.
_JOINS = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
_ONE = np.uint64(1)


def _varints(text: NDArray[np.uint8], position: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the varint at each position, and its length in bytes. At most 16 bytes after a position are read."""
    value = text[position].astype(np.int64)
    size = np.ones(len(position), np.int64)
    several = np.flatnonzero(value >= 0x80)
    if len(several):
        value[several], size[several] = _long_varints(text, position[several])
    return value, size


def _long_varints(text: NDArray[np.uint8], position: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Decode varints of several bytes, as `_varints` does.

    Each byte of a varint has seven bits, the lowest first, and the eighth bit is set in all bytes but the last. So in a
    word of eight bytes, the varint ends at the lowest clear eighth bit. The groups of seven bits are joined in pairs.
    """
    words: NDArray[np.uint64] = np.ndarray(len(text) - 7, "<u8", text.data, strides=(1,))
    word = words[position]
    stops = ~word & _STOPS
    last = stops & (~stops + _ONE)  # the lowest clear eighth bit
    joined = word & ((last << _ONE) - _ONE) & _SEVENS  # the groups up to this bit
    for low, high, apart in _JOINS:
        joined = (joined & low) | ((joined & high) >> apart)
    _, bits = np.frexp(last.astype(np.float64))  # 8 times the number of bytes
    size = (bits >> 3).astype(np.int64)
    value = joined.view(np.int64)
    long = np.flatnonzero(stops == 0)  # nine or ten bytes
    if len(long):
        rest = words[position[long] + 8]
        nine = (rest & np.uint64(0x80)) == 0
        tenth = np.where(nine, np.uint64(0), (rest >> np.uint64(8)) & _ONE)
        upper = ((rest & np.uint64(0x7F)) << np.uint64(56)) | (tenth << np.uint64(63))
        value[long] = (joined[long] | upper).view(np.int64)
        size[long] = np.where(nine, 9, 10)
    return value, size
