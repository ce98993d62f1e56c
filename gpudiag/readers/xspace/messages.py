"""XSpace's protobuf messages, made at run time from xplane.binpb.

Classes that protoc generates demand a protobuf runtime of about their own age, and TensorFlow pins one; a descriptor
works with all of them. Its pool is our own, so that nothing collides with what TensorFlow registers in one process.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_DESCRIPTOR = Path(__file__).with_name("xplane.binpb")


@cache
def space_type(*, raw_events: bool = False) -> Any:
    """The message class `XSpace`.

    Args:
        raw_events: leave the events of each line undecoded, as `bytes`: reading them one Python object at a time takes
            longer than all else (see `wire`).
    """
    files = descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTOR.read_bytes())
    (file,) = files.file
    if raw_events:
        (line,) = (message for message in file.message_type if message.name == "XLine")
        (events,) = (field for field in line.field if field.name == "events")
        # On the wire a submessage is bytes with a length before them.
        events.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
        events.ClearField("type_name")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.XSpace"))
