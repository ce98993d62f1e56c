"""Test that descriptors match their .proto files, and that several descriptor pools can coexist."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpudiag.model.protobuf
from gpudiag.model.protobuf import message_type

SCHEMAS = Path(gpudiag.model.protobuf.__file__).parent
ROOTS = {"xplane": "XSpace", "perfetto": "Trace", "summary": "Event"}


def test_every_schema_has_its_descriptor() -> None:
    assert {path.stem for path in SCHEMAS.glob("*.proto")} == set(ROOTS)


@pytest.mark.parametrize(("schema", "message"), ROOTS.items())
def test_messages_survive_a_round_trip(schema: str, message: str) -> None:
    kind = message_type(schema, message)
    assert kind.FromString(kind().SerializeToString()) == kind()


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="protoc (grpcio-tools) is not installed")
@pytest.mark.parametrize("schema", ROOTS)
@pytest.mark.processes
def test_descriptors_are_up_to_date(schema: str, tmp_path: Path) -> None:
    made = tmp_path / f"{schema}.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path", str(SCHEMAS)]
    subprocess.run([*command, "--descriptor_set_out", str(made), f"{schema}.proto"], check=True, timeout=60)
    assert made.read_bytes() == (SCHEMAS / f"{schema}.binpb").read_bytes()


def test_message_field_may_stay_undecoded() -> None:
    space = message_type("xplane", "XSpace")()
    space.planes.add().lines.add().events.add(metadata_id=7, offset_ps=1000, duration_ps=300)
    data = space.SerializeToString()
    raw = message_type("xplane", "XSpace", undecoded="XLine.events").FromString(data)
    (event,) = raw.planes[0].lines[0].events
    assert event == space.planes[0].lines[0].events[0].SerializeToString()
    assert raw.SerializeToString() == data
