"""Recognise, by first bytes and file name, formats that users mistake for traces and gpudiag does not read."""

from __future__ import annotations

import re

import msgspec

_TORCH = (
    "Record with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], "
    "schedule=torch.profiler.schedule(wait=1, warmup=2, active=5)) and prof.step() in the loop."
)
_EITHER = f"{_TORCH[:-1]}, or give the profiler's .xplane.pb of TensorFlow or JAX."
_NSYS = "Export the report with `nsys export --type sqlite REPORT`, and give the .sqlite."
_XSPACE = "Give the .xplane.pb that the same profiler wrote beside it."


class OtherFormat(msgspec.Struct, frozen=True):
    """A format that is not read: its name for messages, and a hint that says which file to give instead."""

    name: str
    hint: str


class _Sign(msgspec.Struct, frozen=True):
    """A format and the patterns that all occur in the first bytes of its files.

    Each pattern is searched for separately and has no unbounded repetition, so that no text makes the search slow.
    """

    patterns: tuple[re.Pattern[bytes], ...]
    format: OtherFormat


def _sign(*patterns: bytes, name: str, hint: str = _EITHER) -> _Sign:
    return _Sign(tuple(re.compile(pattern) for pattern in patterns), OtherFormat(name, hint))


#: Formats other than JSON, by their first bytes.
_BINARY = (
    _sign(
        rb"\ASQLite format 3\0",
        name="an SQLite database (ROCm's rocpd, or an export of Nsight Systems whose name does not end in .sqlite)",
    ),
    _sign(rb"\A\x80[\x02-\x05]", b"device_traces", name="a snapshot of PyTorch's memory (pickle)", hint=_TORCH),
    _sign(rb"\A\x80[\x02-\x05]", name="a Python pickle, which is never opened"),
    _sign(
        rb"\A\x0a[^\n]{0,64}?[\x00-\x08]",
        name="a protobuf (Perfetto's, or an XSpace whose name does not end in .xplane.pb)",
    ),
    _sign(rb"\A\s{0,64}<(?i:!DOCTYPE|html)", name="an HTML page"),
    _sign(rb"\Amemray", name="a recording of memray"),
    _sign(
        rb"\APAR1",
        name="a Parquet file",
        hint="`gpudiag analyze FILE.parquet` reads tables of the operations of a pipeline-parallel job.",
    ),
)
#: Formats by the endings of file names, in lower case.
_ENDINGS = {
    ".qdrep": "a report of Nsight Systems",
    ".ncu-rep": "a report of Nsight Compute",
    ".pftrace": "a protobuf of Perfetto",
    ".perfetto-trace": "a protobuf of Perfetto",
    ".otf2": "a trace in the Open Trace Format",
    ".rpd": "an SQLite database of ROCm's profiler",
    ".prof": "a profile of cProfile",
    ".pprof": "a profile of pprof",
}
#: JSON formats; a specific format precedes a general one.
_JSON = (
    _sign(rb'"log" ?: ?\{', rb'"(?:creator|entries|pages)"', name="an HTTP archive (HAR) of a browser"),
    _sign(b'"rocprofiler-sdk-tool"', name="the JSON of rocprofv3"),
    _sign(b'"BeginNs"', name="a Chrome trace of rocprof"),
    _sign(b"speedscope", name="a profile of speedscope or py-spy"),
    _sign(rb'"schema" ?: ?"[\d.]{1,20}-chakra', name="an execution trace of PyTorch (Chakra)", hint=_TORCH),
    _sign(b'"device_traces"', name="a snapshot of PyTorch's memory", hint=_TORCH),
    _sign(b'"(?:CudaEvent|NvtxEvent|TraceProcessEvent)"', name="an export of Nsight Systems (JSON)", hint=_NSYS),
    _sign(
        b'"highres-ticks"',
        rb'"name" ?: ?"/(?:device|host):',
        name="the Chrome trace that TensorFlow or JAX makes of a profile (trace.json.gz)",
        hint=_XSPACE,
    ),
    _sign(
        rb'"pid" ?: ?"(?:CPU|CUDA) functions"',
        name="a trace of PyTorch's profiler of before 2021 (torch.autograd.profiler)",
        hint=_TORCH,
    ),
    _sign(rb'"cat" ?: ?"FEE"|"viztracer_metadata"', name="a trace of VizTracer"),
    _sign(b"NEGOTIATE_(?:ALLREDUCE|ALLGATHER|BROADCAST)", name="a timeline of Horovod"),
    _sign(b'"(?:Ascend Hardware|CANN)"', name="a trace of Ascend's profiler, whose device events are not read"),
    _sign(rb'"cat" ?: ?"Session"', rb'"cat" ?: ?"Node"', name="a profile of ONNX Runtime"),
    _sign(b'devtools\\.timeline|disabled-by-default|"clock-domain"', name="a trace of a browser"),
    _sign(rb'"ph" ?: ?"[BEXbe]"', name="a Chrome trace of another program"),
)


def other_format(head: bytes, name: str) -> OtherFormat | None:
    """Return the format of a file by its first unpacked bytes and its name; None if the format is unknown."""
    lowered = name.lower().removesuffix(".gz")
    for ending, format_name in _ENDINGS.items():
        if lowered.endswith(ending):
            return OtherFormat(format_name, _NSYS if ending == ".qdrep" else _EITHER)
    is_json = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["}
    signs = _JSON if is_json else _BINARY
    return next((sign.format for sign in signs if all(pattern.search(head) for pattern in sign.patterns)), None)
