"""Match sends with receives, and find the clock offset of ranks that share no collectives.

Messages from one rank to another arrive in the order of sending: the k-th send belongs to the k-th receive, up to a
constant shift if the recordings begin at different times. No receive ends before its send begins:

    sender      ── send ──┤
    receiver  ├──── recv ─────┤        begin of the send <= end of the receive, on one clock

Messages in both directions bound the offset between two clocks from both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.alignment import Alignment
from gpudiag.analysis.timeline.calibration import LEAST_TOLERANCE_NS, NEARLY_ALL, WIDEST_SHIFT
from gpudiag.analysis.timeline.collectives import MatchedMessages, Messages, TrackCalls

_Index = NDArray[np.intp]


def find_messages(tracks: Sequence[TrackCalls]) -> MatchedMessages:
    """Return the matched messages of all tracks, and the clock alignments that follow from them."""
    messages = match_messages(tracks)
    return MatchedMessages(messages, clock_alignments(tracks, messages))


def match_messages(tracks: Sequence[TrackCalls]) -> list[Messages]:
    """Return the matched messages of each ordered pair of tracks."""
    track_of = {track.rank: index for index, track in enumerate(tracks)}
    sends: dict[tuple[int, int], list[int]] = defaultdict(list)
    receives: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, track in enumerate(tracks):
        for position, call in enumerate(track.calls):
            peer = None if call.peer is None else track_of.get(call.peer)
            if peer is None or peer == index:
                continue
            # One kernel can send and receive.
            if call.operation in {"send", "send_recv"}:
                sends[index, peer].append(position)
            if call.operation in {"recv", "send_recv"}:
                receives[peer, index].append(position)
    matched = []
    for (sender, receiver), positions in sends.items():
        pair = _match(tracks[sender], tracks[receiver], positions, receives[sender, receiver])
        if len(pair[0]):
            matched.append(Messages(sender, receiver, *pair))
    return matched


def _match(sender: TrackCalls, receiver: TrackCalls, sends: list[int], receives: list[int]) -> tuple[_Index, _Index]:
    """Return (sends, matching receives). Without a common clock, the first send and receive are assumed to match.

    A positive shift leaves out that many sends at the beginning, a negative shift that many receives.
    """
    send, receive = np.array(sends, np.intp), np.array(receives, np.intp)
    if not len(send) or not len(receive):
        return send[:0], receive[:0]
    shift = 0
    if sender.clock_known and receiver.clock_known:
        shift = _shift(sender.start[send], receiver.end[receive])
    first = max(shift, 0)
    count = min(len(send) - first, len(receive) - max(-shift, 0))
    return send[first : first + count], receive[max(-shift, 0) : max(-shift, 0) + count]


def _shift(begun: NDArray[np.int64], ended: NDArray[np.int64]) -> int:
    """Return the number of messages by which the sender's recording begins earlier; 0 if no shift fits.

    With the right shift, nearly no receive (ends `ended`) ends before its send begins (`begun`). Of such shifts, the
    shift with the shortest median time from send to receive is returned. Shifts that pair less than half of the shorter
    side do not count, because few messages may fit by chance.
    """
    best, youngest = 0, np.inf
    widest = min(WIDEST_SHIFT, len(begun) - 1, len(ended) - 1)
    for shift in sorted(range(-widest, widest + 1), key=abs):
        count = min(len(begun) - max(shift, 0), len(ended) - max(-shift, 0))
        if 2 * count < min(len(begun), len(ended)):
            continue
        age = ended[max(-shift, 0) :][:count] - begun[max(shift, 0) :][:count]
        if (age >= -LEAST_TOLERANCE_NS).mean() >= NEARLY_ALL and np.median(age) < youngest:
            best, youngest = shift, float(np.median(age))
    return best


def clock_alignments(tracks: Sequence[TrackCalls], messages: Sequence[Messages]) -> list[tuple[int, int, Alignment]]:
    """Return (track a, track b, alignment) of each pair that exchanged messages.

    The offset is the middle of its bounds, or the only bound if messages went in one direction. The offset is 0 if the
    clocks are comparable and the bounds allow 0. If two bounds give the offset, the residual is half their distance.
    """
    by_pair: dict[tuple[int, int], list[Messages]] = defaultdict(list)
    for matched in messages:
        by_pair[min(matched[:2]), max(matched[:2])].append(matched)
    alignments = []
    for (a, b), both in by_pair.items():
        low, high = -np.inf, np.inf  # bounds of (clock of b - clock of a) in ns
        for matched in both:
            # No receive ends before its send begins, so that `room` limits (clock of receiver - clock of sender).
            room = tracks[matched.receiver].end[matched.receive] - tracks[matched.sender].start[matched.send]
            if matched.sender == a:
                high = min(high, float(room.min()))
            else:
                low = max(low, -float(room.min()))
        comparable = tracks[a].clock_known and tracks[b].clock_known
        bounds = [bound for bound in (low, high) if np.isfinite(bound)]
        same = comparable and low <= 0 <= high
        offset = 0.0 if same else float(np.mean(bounds))
        in_a = np.concatenate([matched.send if matched.sender == a else matched.receive for matched in both])
        in_b = np.concatenate([matched.receive if matched.sender == a else matched.send for matched in both])
        residual = (high - low) / 2 if len(bounds) == 2 and not same else 0.0
        alignments.append((a, b, Alignment(in_a, in_b, int(offset), int(max(residual, 0.0)), ambiguous=False)))
    return alignments
