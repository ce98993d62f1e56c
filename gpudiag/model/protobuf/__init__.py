"""Build protobuf message classes at run time from the descriptors beside this file: XSpace, Perfetto, summaries.

Classes that protoc generates require a protobuf runtime of about the same version, and TensorFlow pins a version.
Descriptors work with all versions. A separate descriptor pool avoids collisions with messages that TensorFlow registers
in the same process.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


@cache
def message_type(schema: str, message: str, undecoded: str = "") -> Any:
    """Return a message class.

    Args:
        schema: `xplane`, `perfetto` or `summary`.
        message: name of the message in the schema.
        undecoded: `Message.field` to keep as `bytes`, because decoding its many messages would take most of the time.
    """
    data = Path(__file__).with_name(f"{schema}.binpb").read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(data).file
    if undecoded:
        owner, _, name = undecoded.partition(".")
        (parent,) = (message for message in file.message_type if message.name == owner)
        (field,) = (known for known in parent.field if known.name == name)
        # A submessage is encoded like bytes: its length, then its content.
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
        field.ClearField("type_name")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message}"))
