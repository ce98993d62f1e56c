"""Pack published tables of operations again without a change of values: `pack_pipelines.py FROM_DIR TO_DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from pyarrow import parquet

_TIMES = ["start_ts", "duration"]


def main() -> None:
    """Write each `trace-NAME.parquet` as `NAME.parquet` of half the size, by splitting the bytes of times."""
    source, target = map(Path, sys.argv[1:])
    for path in sorted(source.glob("trace-*.parquet")):
        table = parquet.read_table(path).replace_schema_metadata(None)
        parquet.write_table(
            table,
            target / path.name.removeprefix("trace-"),
            compression="zstd",
            compression_level=22,
            use_byte_stream_split=_TIMES,
            use_dictionary=[name for name in table.schema.names if name not in _TIMES],
        )


if __name__ == "__main__":
    main()
