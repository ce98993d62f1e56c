"""Test decompression of files in blocks of any size, and its limits."""

from __future__ import annotations

import gzip
import random
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.errors import UnreadableInputError
from gpudiag.trace import ReadLimits, unpack
from gpudiag.trace.parallel import usable_cpus
from gpudiag.trace.unpack import free_memory_bytes
from tests.examples import examples


@examples(150)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(3, 5_000),
    st.integers(1, 9_000),
    st.booleans(),
)
def test_any_gzip_is_unpacked_in_any_blocks(
    seed: int, members: list[tuple[int, int]], packed_piece: int, piece: int, plainly: bool
) -> None:
    make = random.Random(seed)  # noqa: S311 - data to pack, not a secret
    alphabet = make.choice([b" ", b'{"ph": "X"}', bytes(range(256))])
    contents = [bytes(make.choices(alphabet, k=length)) for length, _ in members]
    packed = b"".join(gzip.compress(content, level) for content, (_, level) in zip(contents, members, strict=True))
    with (
        TemporaryDirectory() as directory,
        patch.object(unpack, "_PACKED_PIECE", packed_piece),
        patch.object(unpack, "_PIECE", piece),
        patch.object(unpack, "_deflate", zlib if plainly else unpack._deflate),
    ):
        path = Path(directory) / "rank0.json.gz"
        path.write_bytes(packed)
        pieces = list(unpack.read_pieces(path, "x", ReadLimits()))
        assert b"".join(pieces) == b"".join(contents)
        assert all(0 < len(piece_read) <= piece for piece_read in pieces)
        path.write_bytes(packed[:-1])
        with pytest.raises(UnreadableInputError, match=r"cut short|damaged"):
            list(unpack.read_pieces(path, "x", ReadLimits()))


def test_invalid_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        ReadLimits(max_bytes=0)
    with pytest.raises(ValueError, match="at least one process"):
        ReadLimits(workers=0)
    assert usable_cpus() >= 1
    free = free_memory_bytes()
    assert free is None or free > 0
