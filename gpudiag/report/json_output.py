"""JSON for standard output: what `--json` prints, byte for byte what a run directory keeps."""

from __future__ import annotations

import msgspec


def encode(noun: msgspec.Struct) -> bytes:
    """A noun as indented UTF-8 JSON with a newline at its end; figures that are none (NaN, infinite) become null."""
    return msgspec.json.format(msgspec.json.encode(noun), indent=2) + b"\n"
