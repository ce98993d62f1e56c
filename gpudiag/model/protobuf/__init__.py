"""Formats in protobuf that a reader reads or an exporter writes: TensorFlow's XSpace, Perfetto's traces."""

from gpudiag.model.protobuf.messages import message_type

__all__ = ["message_type"]
