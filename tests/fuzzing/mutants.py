"""Make a mutant from a number: real files with parts replaced, repeated, removed or truncated."""

from __future__ import annotations

import copy
import gzip
import json
import random
import sqlite3
import tempfile
import zlib
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpudiag.app.analyze import analyze
from gpudiag.model.event import EventTable, EventWaits
from gpudiag.model.protobuf import message_type
from gpudiag.model.run_directory import encode_json
from gpudiag.trace import read_traces
from gpudiag.trace.readers.digest.encode import encode
from tests.fuzzing import structured
from tests.trace.readers.nsys.exports import SCHEMA_2022, SCHEMA_2024, write_export

_TESTS = Path(__file__).parents[1]
_TRACES = _TESTS / "traces"
_JSON_SEEDS = (
    "gloo_dataloader/rank0.pt.trace.json.gz",
    "public/triton_example.json.gz",
    "public/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "public/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "public/benchmark_result_alexnet.json.gz",
)
_XSPACE_SEEDS = (
    *(f"tensorflow_exchange/{name}" for name in ("cpu-reduce", "independent", "parameter-server")),
    *(f"jax/{name}" for name in ("clean", "data_parallel", "unmarked")),
)
_NSYS_SCHEMAS = (SCHEMA_2022, SCHEMA_2024)
_MACHINES = ("h200x4", "dgx-1", "patrick-4x")
#: Maximum number of events of a seed, which is the real trace that a mutant changes. One or two steps are enough,
#: because only the structure of a seed matters.
_MOST_EVENTS = 1500
_DEEP: Any = 1
for _ in range(200):
    _DEEP = [_DEEP]
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        7,
        2**31 - 1,
        2**31,
        2**53 + 1,
        2**63 - 1,
        -(2**63),
        2**63,
        2**64,
        10**30,
        -(10**30),
    ),
    *(0.5, -0.0, 1e-300, 1e18, 1e308, -1e308, float("nan"), float("inf")),
    *(
        "",
        "0",
        "x" * 5000,
        "\x1b[31m\x1b]0;title\x07",
        "\u202e",
        "\x00",
        "\ud800",
        "[0, 1]",
        "../../etc/passwd",
        "=1+1",
    ),
    *([], {}, [[]], {"a": 1}, [1] * 1000, _DEEP),
    *("X", "kernel", "cuda_runtime", "gpu_memcpy", "python_function", "user_annotation", "ProfilerStep#3", "stream 7"),
)
_VERSIONS = (b"digest/1", b"digest/1", b"digest/2", b"digest/\x1b")
_NUMBERS = (0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63))

#: Words of a command line, in which {} is the path of the mutant.
Command = tuple[str, ...]


def write_mutant(number: int, directory: Path) -> tuple[Command, ...]:
    """Write mutant `number` into an empty directory; return the commands to run on it."""
    chance = random.Random(number)  # noqa: S311 - the mutant must be reproducible
    # Kinds that are listed twice are written twice as often.
    kinds = (
        *(_json_trace, _json_trace, _xspace, _nsys, _run_directory, _facts),
        *(structured.run_with_step, structured.scaling, structured.scaling, structured.threads, _digest),
    )
    return kinds[number % len(kinds)](chance, directory)


def _json_trace(chance: random.Random, directory: Path) -> tuple[Command, ...]:
    """Write a mutant of a Kineto trace, sometimes beside an intact trace of a second rank."""
    document = json.loads(_json_seed(chance.choice(_JSON_SEEDS)))
    events = document["traceEvents"] if isinstance(document, dict) else document
    for _ in range(chance.choice((1, 1, 2, 4, 30))):
        _mutate(chance, chance.choice(events) if events and chance.random() < 0.7 else document)
    text = _cut(chance, json.dumps(document).encode())
    packed = chance.random() < 0.3
    path = directory / ("rank0.pt.trace.json.gz" if packed else "rank0.pt.trace.json")
    path.write_bytes(_cut(chance, gzip.compress(text, 1)) if packed else text)
    if chance.random() < 0.2:  # the second rank is unchanged
        (directory / "rank1.pt.trace.json").write_bytes(_json_seed(chance.choice(_JSON_SEEDS)))
    export: Command = ("export", "{}", "--to", chance.choice(("csv", "chrome", "perfetto", "xspace")), "-o", "-")
    return (chance.choice((("analyze", "{}", "--json"), ("analyze", "{}"), ("report", "{}", "--html", "-"), export)),)


def _xspace(chance: random.Random, directory: Path) -> tuple[Command, ...]:
    """Write a mutant of an XSpace, a trace of TensorFlow or JAX."""
    space = message_type("xplane", "XSpace").FromString(_xspace_seed(chance.choice(_XSPACE_SEEDS)))
    for _ in range(chance.choice((1, 1, 2, 4, 30))):
        _mutate_message(chance, space)
    (directory / "host.xplane.pb").write_bytes(_cut(chance, space.SerializeToString()))
    return (
        chance.choice((("analyze", "{}", "--json"), ("analyze", "{}"), ("export", "{}", "--to", "csv", "-o", "-"))),
    )


def _nsys(chance: random.Random, directory: Path) -> tuple[Command, ...]:
    """Write a mutant of an export of Nsight Systems: changed rows or columns, or damaged pages."""
    path = directory / "report.sqlite"
    path.write_bytes(_nsys_seed(chance.randrange(len(_NSYS_SCHEMAS))))
    with closing(sqlite3.connect(path)) as database:
        for _ in range(chance.choice((0, 1, 2, 4, 30))):
            _mutate_table(chance, database)
        database.commit()
    path.write_bytes(_cut(chance, path.read_bytes()))
    return (
        chance.choice((("analyze", "{}", "--json"), ("analyze", "{}"), ("export", "{}", "--to", "chrome", "-o", "-"))),
    )


def _run_directory(chance: random.Random, directory: Path) -> tuple[Command, ...]:
    """Write a run directory in which one file is a mutant."""
    files = {name: json.loads(text) for name, text in _run_files().items()}
    mutated = chance.choice(sorted(files))
    for _ in range(chance.choice((1, 1, 2, 4, 30))):
        _mutate(chance, files[mutated])
    for name, content in files.items():
        text = json.dumps(content).encode()
        (directory / name).write_bytes(_cut(chance, text) if name == mutated else text)
    (directory / "traces").mkdir()
    if chance.random() < 0.5:
        (directory / "traces" / "rank0.pt.trace.json").write_bytes(_json_seed(_JSON_SEEDS[0]))
    return (
        chance.choice(
            (
                ("analyze", "{}"),
                ("report", "{}"),
                ("report", "{}", "--html", "-"),
                ("table", "{}"),
                ("diff", "{}", "{}"),
                ("analyze", "{}/analysis.json"),
                ("report", "{}/analysis.json", "--markdown", "-"),
                ("recommend", "--predict-only", "--gradients", "{}/run.json"),
            )
        ),
    )


def _facts(chance: random.Random, directory: Path) -> tuple[Command, ...]:
    """Write a mutant of a machine's facts, and sizes of gradients."""
    facts = json.loads((_TESTS / "machines" / f"{chance.choice(_MACHINES)}.json").read_bytes())
    for _ in range(chance.choice((1, 1, 2, 4, 30))):
        _mutate(chance, facts)
    (directory / "facts.json").write_bytes(_cut(chance, json.dumps(facts).encode()))
    (directory / "sizes.json").write_text("[4000000, 1000, 300000]")
    return (
        chance.choice(
            (
                ("topology", "--from", "{}/facts.json"),
                ("topology", "--from", "{}/facts.json", "--json"),
                ("recommend", "--predict-only", "--facts", "{}/facts.json", "--gradients", "{}/sizes.json"),
                ("recommend", "--predict-only", "--facts", "{}/facts.json", "--gradients", "{}/sizes.json", "--json"),
            )
        ),
    )


def _digest(chance: random.Random, directory: Path) -> tuple[Command, ...]:
    """Write a mutant of a digest, sometimes beside a second rank's digest, of which at most the version is changed."""
    head, size, packed, events, others = _digest_parts()
    header = msgspec.msgpack.decode(zlib.decompress(packed))
    columns = [bytearray(zlib.decompress(part)) for part in (events, others)]
    if chance.random() < 0.5:
        for _ in range(chance.choice((1, 1, 2, 4, 30))):
            _mutate(chance, header)
        packed = zlib.compress(content := _packed(header))
        size = len(content) if chance.random() < 0.9 else chance.choice(_NUMBERS)
    else:
        for _ in range(chance.choice((1, 3, 100))):
            part = chance.choice(columns)
            part[chance.randrange(len(part))] = chance.randrange(256)
    body = (size, packed, *(zlib.compress(bytes(part)) for part in columns))
    (directory / "rank0.gpudiag-digest").write_bytes(_cut(chance, head + _packed(body)))
    if chance.random() < 0.2:
        intact = (directory / "rank1.gpudiag-digest", _digest_seed().replace(b"digest/1", chance.choice(_VERSIONS), 1))
        intact[0].write_bytes(intact[1])
    export: Command = ("export", "{}", "--to", chance.choice(("csv", "chrome", "perfetto")), "-o", "-")
    return (chance.choice((("analyze", "{}", "--json"), ("analyze", "{}"), ("report", "{}", "--html", "-"), export)),)


def _packed(content: Any) -> bytes:
    """Return MessagePack; values that MessagePack lacks (large integers, lone surrogates) become null.

    0xDF begins a map, and 0xDD an array, whose length has 32 bits.
    """
    try:
        return msgspec.msgpack.encode(content)
    except (OverflowError, UnicodeEncodeError):
        if isinstance(content, dict):
            parts = [part for item in content.items() for part in item]
            return bytes([0xDF, *len(content).to_bytes(4, "big")]) + b"".join(map(_packed, parts))
        if isinstance(content, list | tuple):
            return bytes([0xDD, *len(content).to_bytes(4, "big")]) + b"".join(map(_packed, content))
        return msgspec.msgpack.encode(None)


def _mutate(chance: random.Random, document: Any) -> None:
    """Change one location in a document; descend into each nested level with probability 0.85."""
    place = document if isinstance(document, dict | list) else []
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.85:
            place = inner
            continue
        break
    what = chance.random()
    if what < 0.65:
        place[key] = copy.deepcopy(chance.choice(_VALUES))
    elif what < 0.75:
        del place[key]
    elif what < 0.85 and isinstance(inner, int | float) and not isinstance(inner, bool):
        place[key] = inner * chance.choice((-1, 1000, 1e-6, 1e12))
    elif isinstance(place, list):
        place.insert(chance.randrange(len(place) + 1), copy.deepcopy(chance.choice(place)))
    else:
        place[key] = copy.deepcopy(place[chance.choice(keys)])


def _mutate_message(chance: random.Random, message: Any) -> None:
    """Change one field of a protobuf message, or of a message nested in it, or remove a nested message."""
    while True:
        fields = message.ListFields()
        if not fields:
            return
        field, value = chance.choice(fields)
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key = chance.choice(list(value))
            if chance.random() < 0.1:
                del value[key]
                return
            message = value[key]
        elif entry is not None:
            several = list(value)
            place = chance.randrange(len(several))
            if chance.random() < 0.1:
                del value[place]
                return
            message = several[place]
        else:
            break
    choices = (
        ("", "\x1b[31m", "x" * 3000) if isinstance(value, str) else (b"",) if isinstance(value, bytes) else _NUMBERS
    )
    try:
        setattr(message, field.name, chance.choice(choices))
    except (ValueError, TypeError, AttributeError):  # the field cannot have the value, or is repeated
        message.ClearField(field.name)


def _mutate_table(chance: random.Random, database: sqlite3.Connection) -> None:
    """Change values of a column, or remove rows, a column or a table."""
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    if not tables:
        return
    table = chance.choice(tables)
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    column, share = chance.choice(columns), chance.choice((1, 2, 50))
    what = chance.random()
    with suppress(sqlite3.Error):  # some columns cannot be removed, and some values not be stored
        if what < 0.7:
            value = chance.choice((*_NUMBERS, 1e300, "", "\x1b[31m", "ProfilerStep#3", b"\xff\x00", None))
            database.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid % {share} = 0', (value,))  # noqa: S608
        elif what < 0.8:
            database.execute(f"DELETE FROM {table} WHERE rowid % {share} = 0")  # noqa: S608
        elif what < 0.9:
            database.execute(f'ALTER TABLE {table} DROP COLUMN "{column}"')
        else:
            database.execute(f"DROP TABLE {table}")


def _cut(chance: random.Random, data: bytes) -> bytes:
    """Return the data, in most cases unchanged, otherwise truncated or with some bytes changed, inserted or removed."""
    what = chance.random()
    if what < 0.75 or not data:
        return data
    place = chance.randrange(len(data))
    if what < 0.82:
        return data[:place]
    changed = bytearray(data)
    for _ in range(chance.choice((1, 3, 20))):
        place = chance.randrange(len(changed) or 1)
        changed[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
    return bytes(changed)


@cache
def _json_seed(name: str) -> bytes:
    document = json.loads(gzip.decompress((_TRACES / name).read_bytes()))
    if isinstance(document, dict):
        document["traceEvents"] = document["traceEvents"][:_MOST_EVENTS]
    return json.dumps(document).encode()


@cache
def _digest_seed() -> bytes:
    (trace,) = read_traces([_TRACES / _JSON_SEEDS[0]])
    return encode(trace)


def _digest_parts() -> tuple[bytes, int, bytes, bytes, bytes]:
    """Return the first line, the header's size, and the three compressed parts of the digest."""
    head, _, body = _digest_seed().partition(b"\n")
    return (head + b"\n", *msgspec.msgpack.decode(body, type=tuple[int, bytes, bytes, bytes]))


@cache
def _xspace_seed(name: str) -> bytes:
    return gzip.decompress((_TRACES / f"{name}.xplane.pb.gz").read_bytes())


@cache
def _nsys_seed(version: int) -> bytes:
    """Return an export of the first 1,500 events of two ranks."""
    traces = [
        msgspec.structs.replace(trace, events=_first_events(trace.events), event_waits=EventWaits())
        for trace in read_traces([_TRACES / "vgg_p2poff"])[:2]
    ]
    with tempfile.TemporaryDirectory() as directory:
        return write_export(Path(directory) / "report.sqlite", traces, _NSYS_SCHEMAS[version]).read_bytes()


def _first_events(events: EventTable) -> EventTable:
    return EventTable(**{name: column[:_MOST_EVENTS] for name, column in events.columns().items()}, names=events.names)


@cache
def _run_files() -> dict[str, bytes]:
    """Return the files of a run directory by name."""
    record = {
        "schema": "gpudiag/run/1",
        "created": "2026-01-01T00:00:00Z",
        "command": ["gpudiag", "profile"],
        "workload": "resnet50",
        "framework": "pytorch",
        "strategy": "nccl",
        "world_size": 2,
        "nodes": 1,
        "batch_size_per_device": 64,
        "status": "complete",
        "options": {"data": "host"},
        "model": {"parameters": 10, "gradient_bytes": 40, "gradient_sizes": [16, 24]},
        "ranks": [
            {
                "schema": "gpudiag/rank/1",
                "rank": 0,
                "local_rank": 0,
                "host": "host",
                "pid": 1,
                "device": "cuda:0",
                "device_name": "NVIDIA H200",
                "unprofiled": {
                    "step_ms": [40.0, 41.0],
                    "mean_ms": 40.5,
                    "median_ms": 40.5,
                    "standard_error_ms": 0.5,
                    "jitter_ms": 0.1,
                },
                "trace": "traces/rank0.pt.trace.json",
            }
        ],
    }
    return {
        "run.json": json.dumps(record).encode(),
        "analysis.json": encode_json(analyze([_TRACES / "gloo_dataloader"])),
        "facts.json": (_TESTS / "machines" / "h200x4.json").read_bytes(),
    }
