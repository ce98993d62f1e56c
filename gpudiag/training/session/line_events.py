"""Receive events of the user's lines, calls and returns, within a bound on the overhead.

On Python 3.12 and later `sys.monitoring` reports lines, calls and returns of selected functions. On Python 3.11
`sys.settrace` reports these events, and makes pure Python up to 2.7 times as slow. The first steps, called discovery
steps, find the user's functions. Then events of lines are disabled until the overhead is within its bound. Lines with
the least time per event are disabled first.

Worked example. A step of 20 ms may spend 0.4 ms on events. A user's function runs `for x in values:` and `total += x`
1,000 times each, and all other lines together run 80 times. Then both lines of the loop are disabled. The events of the
discovery steps still show how the function's time divides among its lines.
"""

from __future__ import annotations

import itertools
import posixpath
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from gpudiag.training.session.ranges import INPUT_BOUNDS
from gpudiag.training.session.user_code import is_own

#: Values that are not line numbers: a call, a return or exception, the end of a step, and the start of gpudiag's code.
CALL, LEAVE, STEP, PAUSE = -1, -2, -3, -4
#: The value `CALLS - n` means that n unrecorded functions were called since the previous entry.
CALLS = -1000
#: Values of entries that record a call of PyTorch from the current line, by the kind of work of the call.
WORK = {"input": -11, "forward": -12, "backward": -13, "optimizer": -14}
#: Values of entries that record the start and the end of a range named `input`.
INPUT_BEGIN, INPUT_END = -15, -16

#: Cost in ns of each of the first events of a step; cost in ns of each later event, which finds its data in the
#: processor's caches; and number of first events.
_EVENT_NS, _FURTHER_EVENT_NS, _COLD_EVENTS = 1300, 400, 250
#: The overhead per step may be 2 % of the step. In short steps the overhead may be 0.1 ms, but at most 6 % of the step.
_MAX_SHARE, _MAX_NS, _MAX_SHARE_OF_SHORT = 0.02, 100_000, 0.06
#: Maximum number of events of the training thread in one step, and of each other thread in one section. Functions that
#: contain the training loop may cause twice as many, because otherwise calls would be attributed to wrong lines.
_MAX_STEP_EVENTS = _MAX_THREAD_EVENTS = 60_000
#: Number of repetitions of `calibrate`'s measurement, and number of calls in each repetition.
_CALIBRATIONS, _CALIBRATION_CALLS = 4, 40

#: Time in ns of `perf_counter_ns`; function or None; and line number or one of the values above.
Entry = tuple[int, CodeType | None, int]


def _works() -> dict[CodeType, int]:
    """Return code object → value of an entry, for PyTorch's functions in `WORK` and the ends of `input` ranges."""
    kinds = dict(zip(INPUT_BOUNDS, (INPUT_BEGIN, INPUT_END), strict=True))
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return kinds
    for kind, path in (
        ("forward", "nn.Module._wrapped_call_impl"),
        ("backward", "Tensor.backward"),
        ("backward", "autograd.backward"),
        ("input", "utils.data.dataloader._BaseDataLoaderIter.__next__"),
    ):
        target: Any = torch
        for name in path.split("."):
            target = getattr(target, name, None)
        while target is not None:  # gpudiag may have wrapped the function that fetches a batch
            code = getattr(target, "__code__", None)
            if code is not None:
                kinds[code] = WORK[kind]
            target = getattr(target, "__wrapped__", None)
    # `profile_hook_step` wraps `step` of every optimizer by the same inner function, a constant of its code.
    wrapper = getattr(torch.optim.Optimizer.profile_hook_step, "__code__", None)
    for constant in wrapper.co_consts if wrapper is not None else ():
        if isinstance(constant, CodeType):
            kinds[constant] = WORK["optimizer"]
    return kinds


def _by_id(works: dict[CodeType, int]) -> dict[int, int]:
    """Return the values keyed by the `id` of code objects, because hashing a code object takes longer."""
    return {id(code): kind for code, kind in works.items()}


def make_source() -> tuple[MonitoredEvents | TracedEvents | None, str]:
    """Return (event source for this interpreter, ""), or (None, reason why no events can be received)."""
    if sys.gettrace() is not None:
        return None, "a debugger or another tracer is attached to the program"
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:
        if sys.getprofile() is not None:
            return None, "another profiler is attached to the program"
        return TracedEvents(), ""
    if any(monitoring.get_tool(tool) is not None for tool in (monitoring.DEBUGGER_ID, monitoring.COVERAGE_ID)):
        return None, "a debugger or a coverage tool is attached to the program"
    # Python has no predefined use for tools 3 and 4, so they conflict with other programs least.
    free = [tool for tool in (4, 3, monitoring.PROFILER_ID) if monitoring.get_tool(tool) is None]
    return (MonitoredEvents(free[0]), "") if free else (None, "other tools use the interpreter's monitoring")


def events_to_disable(entries: list[Entry], loop: set[CodeType], *, by_line: bool = True) -> set[tuple[CodeType, int]]:
    """Return the events to disable, as (code, line), so that the other events are within the bound on the overhead.

    Events with the least time per event are disabled first. Events of functions in `loop` are disabled last. Line 0
    stands for the calls and returns of a function: disabling line 0 disables all lines of the function. The calls and
    returns of functions in `loop` are never disabled. The result is empty if all events are within the bound.

    Args:
        entries: the entries of one step.
        loop: the functions that contain the training loop.
        by_line: True to disable single lines, False to disable only whole functions.
    """
    if len(entries) < 2:
        return set()
    step_ns = entries[-1][0] - entries[0][0]
    allowed_ns = max(_MAX_SHARE * step_ns, min(_MAX_NS, _MAX_SHARE_OF_SHORT * step_ns))
    allowed = min(allowed_ns / _EVENT_NS, _COLD_EVENTS)  # a number of events, of which the first cost more
    allowed += max(0.0, allowed_ns - _COLD_EVENTS * _EVENT_NS) / _FURTHER_EVENT_NS
    recorded = [entry for entry in entries if entry[2] > CALLS]  # entries `CALLS - n` are counts, not events
    # Return early if possible, because a hash of a code object takes microseconds. The last entry ends the step.
    if sum(code is not None for _, code, _ in recorded[:-1]) <= allowed:
        return set()
    counts: Counter[tuple[CodeType, int]] = Counter()
    spent: Counter[tuple[CodeType, int]] = Counter()
    for (at_ns, code, value), following in itertools.pairwise(recorded):
        if code is not None:
            key = (code, max(value, 0) if by_line else 0)  # the values of calls and returns are negative
            counts[key] += 1
            spent[key] += following[0] - at_ns
            if key[1]:  # the time of a line is also time of its function
                spent[code, 0] += following[0] - at_ns
    total = counts.total()
    disabled: set[tuple[CodeType, int]] = set()
    for key in sorted(counts, key=lambda key: (key[0] in loop, spent[key] / counts[key])):
        if total <= allowed:
            break
        code, line = key
        if key in disabled or (line == 0 and code in loop):
            continue
        newly_disabled = {key} if line else {event for event in counts if event[0] is code} - disabled
        disabled |= newly_disabled
        total -= sum(counts[event] for event in newly_disabled)
    return disabled


class MonitoredEvents:
    """Receive events of `sys.monitoring` for selected code objects, on all threads. `tool` is a free tool id.

    `_loop` contains the functions that contain the training loop. `_own` contains the user's functions that the loop
    calls. The keys of both dictionaries are the `id`s of the code objects.
    """

    def __init__(self, tool: int) -> None:
        self._tool = tool
        self._api: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._thread = threading.get_ident()  # the training thread
        self._works = _works()
        self._work_of = _by_id(self._works)
        self._loop: dict[int, CodeType] = {}
        self._own: dict[int, CodeType] = {}
        self._disabled: set[tuple[int, int]] = set()
        #: True if `_line` has disabled lines because `_entries` was longer than `_limit`, the bound for this step.
        self._exceeded = False
        #: Number of entries of a step in which nothing had to be disabled. Only a step with more entries is checked.
        self._few = 0
        self._entries: list[Entry] = []
        self._others: dict[int, list[Entry]] = {}
        self._limit, self._active = 0, False

    def start(
        self, frames: list[FrameType], entries: list[Entry], others: dict[int, list[Entry]], *, discover: bool
    ) -> None:
        """From now on append events of the training thread to `entries`, and of other threads to `others`.

        The training loop is in the code of `frames`. With `discover`, record user functions from their first call on.
        """
        self._entries, self._others, self._limit = entries, others, _MAX_STEP_EVENTS
        events = self._api.events
        self._api.use_tool_id(self._tool, "gpudiag")
        self._active = True
        for event, callback in (
            (events.LINE, self._line),
            (events.PY_START, self._call),
            (events.PY_RESUME, self._call),
            (events.PY_RETURN, self._leave),
            (events.PY_YIELD, self._leave),
            (events.PY_UNWIND, self._unwind),
        ):
            self._api.register_callback(self._tool, event, callback)
        self._loop.update((id(frame.f_code), frame.f_code) for frame in frames)
        for code in self._watched():
            self._listen(code)
        self._api.set_events(self._tool, events.PY_UNWIND | (events.PY_START if discover else 0))
        self._api.restart_events()  # enable again what callbacks have disabled in an earlier section

    def stop(self) -> None:
        """Stop receiving events, and free the tool id."""
        if not self._active:
            return
        self._active = False
        self._api.set_events(self._tool, 0)
        for code in self._watched():
            self._api.set_local_events(self._tool, code, 0)
        self._api.free_tool_id(self._tool)

    def limit(self, entries: list[Entry], *, discovering: bool) -> None:
        """Begin a step. Unless `discovering`, disable frequent events. `entries` are those of the previous step."""
        self._limit = len(self._entries) + _MAX_STEP_EVENTS
        if discovering or (not self._exceeded and len(entries) <= self._few):
            return
        self._api.set_events(self._tool, self._api.events.PY_UNWIND)  # no longer report calls of new functions
        disabled = events_to_disable(entries, set(self._loop.values()))
        self._few = 0 if disabled else len(entries)
        self._disabled |= {(id(code), line) for code, line in disabled}
        if self._exceeded:  # `_line` has disabled further lines in the previous step: enable these lines again
            self._exceeded = False
            self._api.restart_events()
        for code in {code for code, line in disabled if line == 0}:
            self._listen(code)

    def _watched(self) -> list[CodeType]:
        return [*self._loop.values(), *self._own.values(), *self._works]

    def _listen(self, code: CodeType) -> None:
        events = self._api.events
        wanted = events.PY_START
        if id(code) not in self._work_of:
            wanted |= events.PY_RESUME | events.PY_RETURN | events.PY_YIELD | events.LINE
        self._api.set_local_events(self._tool, code, 0 if (id(code), 0) in self._disabled else wanted)

    def _note(self, code: CodeType | None, value: int) -> bool:
        """Append an event of the current thread. Return False if this thread does not train and has too many events."""
        thread = threading.get_ident()
        entries = self._entries
        if thread != self._thread:
            entries = self._others[thread]
            if len(entries) >= _MAX_THREAD_EVENTS:
                return False
        entries.append((time.perf_counter_ns(), code, value))
        return True

    def _line(self, code: CodeType, number: int) -> Any:
        """Record that a line begins. Disable the line's events if it is in `_disabled` or the step has too many events.

        Lines of functions in `_loop` may exceed the limit of a step twofold.
        """
        if (id(code), number) in self._disabled:
            return self._api.DISABLE
        beyond = len(self._entries) - self._limit
        if beyond > 0 and (id(code) not in self._loop or beyond > _MAX_STEP_EVENTS):
            self._exceeded = True
            return self._api.DISABLE
        return None if self._note(code, number) else self._api.DISABLE

    def _call(self, code: CodeType, _offset: int) -> Any:
        """Record a call of a user's function or of a function in `_works`; disable calls of other functions.

        When a user's function is called for the first time, begin to record its lines.
        """
        key = id(code)
        if key in self._own or key in self._loop:
            self._note(code, CALL)
            return None
        work = self._work_of.get(key)
        if work is not None:
            self._note(None, work)
            return None
        if not is_own(code.co_filename):
            return self._api.DISABLE
        self._own[key] = code
        self._listen(code)
        self._note(code, CALL)
        return None

    def _leave(self, code: CodeType, _offset: int, _value: object) -> None:
        self._note(code, LEAVE)

    def _unwind(self, code: CodeType, _offset: int, _error: BaseException) -> None:
        # PY_UNWIND events arrive for all functions, because they cannot be enabled for single functions.
        if id(code) in self._own or id(code) in self._loop:
            self._note(code, LEAVE)


def _call_ns() -> float:
    """Return the mean time of a short call in ns. Each round has two calls, because `basename` calls a function."""
    begin_ns = time.perf_counter_ns()
    for _ in range(_CALIBRATION_CALLS):
        posixpath.basename("a/b")
    return (time.perf_counter_ns() - begin_ns) / (2 * _CALIBRATION_CALLS)


class TracedEvents:
    """Receive events of `sys.settrace` on the training thread, for Python 3.11.

    Attributes:
        call_ns: overhead of tracing per call of an unrecorded function, in ns; 0 before `calibrate`.
    """

    def __init__(self) -> None:
        self.call_ns = 0.0
        self._works = _works()
        self._work_of = _by_id(self._works)
        self._loop: list[FrameType] = []
        #: Functions on the loop's stack, by `id`. A library may call some of these functions again in each step.
        self._loop_code: dict[int, CodeType] = {}
        #: Functions that are not recorded, by `id`. `_closed` has only the functions that `limit` disabled.
        self._foreign: dict[int, CodeType] = {}
        self._closed: dict[int, CodeType] = {}
        #: Number of calls of unrecorded functions since the last event. `sys.settrace` slows each of these calls.
        self._calls = 0
        self._entries: list[Entry] = []
        self._limit, self._active = 0, False  # `_limit` is the length of `_entries` that this step should not exceed

    def start(
        self, frames: list[FrameType], entries: list[Entry], others: dict[int, list[Entry]], *, discover: bool
    ) -> None:
        """Receive events. See `MonitoredEvents.start` for the arguments."""
        del others, discover  # only one thread is traced, and every call is checked for a function of the user
        self._entries, self._loop, self._limit = entries, frames, _MAX_STEP_EVENTS
        self._active = True
        self._foreign = self._closed.copy()  # functions that an earlier section has disabled stay disabled
        self._loop_code.update((id(frame.f_code), frame.f_code) for frame in frames)
        for frame in frames:
            frame.f_trace, frame.f_trace_lines = self._trace, True
        sys.settrace(self._called)

    def calibrate(self) -> None:
        """Measure `call_ns`, by the shortest repetitions. The measurement takes half a millisecond."""
        entries: list[Entry] = [(0, None, STEP)]  # `_note_calls` needs a previous entry
        plain_ns = min(_call_ns() for _ in range(_CALIBRATIONS))
        self.start([], entries, {}, discover=False)
        self.call_ns = max(0.0, min(_call_ns() for _ in range(_CALIBRATIONS)) - plain_ns)
        self.stop()
        self._calls = 0

    def stop(self) -> None:
        """End tracing. If another thread calls this method, tracing ends at the training thread's next call."""
        self._active = False
        self._foreign = {}
        if sys.gettrace() == self._called:
            sys.settrace(None)
        for frame in self._loop:
            frame.f_trace = None
        self._loop = []

    def limit(self, entries: list[Entry], *, discovering: bool) -> None:
        """Begin a step as `MonitoredEvents.limit` does. Disable whole functions: single lines cannot be disabled."""
        self._limit = len(self._entries) + _MAX_STEP_EVENTS
        for frame in self._loop:
            frame.f_trace_lines = True  # if the previous step had too many events, `_trace` has set False
        if not discovering:
            loop = set(self._loop_code.values())
            closed = {code for code, _ in events_to_disable(entries, loop, by_line=False)}
            self._closed.update((id(code), code) for code in closed)
            self._foreign.update(self._closed)

    def _note_calls(self) -> None:
        """Append the number of calls since the last event, with that event's time, so that times stay in order."""
        if self._calls:
            self._entries.append((self._entries[-1][0], None, CALLS - self._calls))
            self._calls = 0

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        """Record or count a call. Return the tracer of its lines for a recorded user's function, else None."""
        code = frame.f_code
        if id(code) in self._foreign:  # checked first, because most calls are of such functions
            self._calls += 1
            return None
        if not self._active:
            sys.settrace(None)
            return None
        work = self._work_of.get(id(code))
        if work is not None:
            self._entries.append((time.perf_counter_ns(), None, work))
            return None
        if id(code) not in self._loop_code and not is_own(code.co_filename):
            self._foreign[id(code)] = code
            self._calls += 1
            return None
        if len(self._entries) > self._limit:  # the step has too many events: only count its further calls
            self._calls += 1
            return None
        self._note_calls()
        self._entries.append((time.perf_counter_ns(), code, CALL))
        return self._trace

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        """Record a line or a return within a recorded function. Return None to end the tracing of its frame."""
        if not self._active:
            return None
        self._note_calls()
        if event == "line":
            beyond = len(self._entries) - self._limit
            if beyond > 0 and (id(frame.f_code) not in self._loop_code or beyond > _MAX_STEP_EVENTS):
                frame.f_trace_lines = False  # the step has too many events: record only returns of this frame
                return self._trace
            self._entries.append((time.perf_counter_ns(), frame.f_code, frame.f_lineno))
        elif event == "return":
            self._entries.append((time.perf_counter_ns(), frame.f_code, LEAVE))
        return self._trace
