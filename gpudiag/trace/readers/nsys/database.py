"""Read columns of an SQLite file, which may be damaged or hostile, within bounds of time and memory.

A damaged or hostile file may hold values of other types than declared, views and virtual tables in place of tables,
texts of a gigabyte, and pages that refer to each other in a circle. Therefore:

* only ordinary tables and ordinary columns are read, and all numbers are converted by SQLite to 64-bit integers;
* the file is opened read-only, and functions in its schema are not trusted;
* the number of SQLite's instructions and the number of rows are limited in proportion to the size of the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.unpack import ReadLimits, opened_file

MAGIC = b"SQLite format 3\0"
#: Value of an integer column that is missing or NULL.
MISSING = -1
#: Rows that are fetched at once.
_ROWS_AT_ONCE = 20_000
#: SQLite's instructions between two calls of the progress handler.
_TICK = 2_000_000
#: Maximum number of SQLite's instructions: a constant, and a number per byte of the file. Reading all columns of a
#: table that nsys wrote takes about one instruction per byte.
_INSTRUCTIONS = 200_000_000
_INSTRUCTIONS_PER_BYTE = 30
#: Minimum number of bytes of a row with a start and an end.
_ROW_BYTES = 8
_LONGEST_NAME = 4096
_STRINGS_AT_ONCE = 5000
_COPY = "Copy the file again, or export it again: nsys export --type sqlite REPORT.nsys-rep"

Window = tuple[int, int]


class Database:
    """An SQLite file, opened read-only. Use it as a context manager.

    Attributes:
        size: bytes of the file.
        tables: names of the ordinary tables → names of their ordinary columns.

    Raises:
        UnreadableInputError: the file is missing, damaged, or not a regular file.
        NotATraceError: the file is not an SQLite database.
        TooLargeError: the file is larger than the limits allow.
    """

    def __init__(self, path: Path, shown: str, limits: ReadLimits) -> None:
        self._shown = shown
        with opened_file(path, shown) as (file, self.size):
            if not file.read(len(MAGIC)).startswith(MAGIC):
                raise NotATraceError(f"{shown} is not an SQLite database", _COPY)
        if self.size > limits.max_bytes:
            raise TooLargeError(
                f"{shown} has {self.size / 1e9:.3g} GB, more than the {limits.max_bytes / 1e9:.3g} GB that are allowed "
                "for one trace"
            )
        self._ticks = (_INSTRUCTIONS + self.size * _INSTRUCTIONS_PER_BYTE) // _TICK
        # Without the constants, valid small files would be refused.
        self._rows_left = 1000 + self.size // _ROW_BYTES
        self._characters_left = (1 << 20) + 2 * self.size
        with self._errors():  # `immutable` prevents lock and journal files beside the file
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            self.tables = self._open()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def _open(self) -> dict[str, frozenset[str]]:
        """Set the limits, and return the columns of each table."""
        connection = self._connection
        connection.text_factory = _text
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(1 << 20, min(self.size, 10**9)))
        connection.set_progress_handler(self._tick, _TICK)
        with self._errors():
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0"):
                connection.execute(f"PRAGMA {pragma}")
            names = self._fetch(
                "SELECT name FROM sqlite_master WHERE type='table' AND sql LIKE 'CREATE TABLE%' "
                "AND length(name) < 200 LIMIT 20000"
            )
            return {name: self._columns_of(name) for (name,) in names if isinstance(name, str)}

    def _columns_of(self, table: str) -> frozenset[str]:
        """Return the columns of a table, without generated columns."""
        return frozenset(row[1] for row in self._fetch(f"PRAGMA table_info({_quoted(table)})"))

    def _tick(self) -> bool:
        self._ticks -= 1
        return self._ticks < 0

    def integers(
        self,
        table: str,
        columns: Mapping[str, int],
        *,
        window: Window | None = None,
        where: str = "",
        text: str = "",
        as_hex: bool = False,
    ) -> Iterator[tuple[NDArray[np.int64], list[str]]]:
        """Yield rows of a table in parts: (int64[n, k], the text column of each row or []).

        Args:
            table: the table; if the file lacks it, nothing is yielded.
            columns: names of integer columns → value where a column is missing or NULL.
            window: [begin, end) of the rows' `start`; None for all rows. Without `start`, no row is in a window.
            where: an SQL condition on columns that the table has; "" for none.
            text: a text column, of which at most 4,096 characters are read; "" for none. NULL is "".
            as_hex: whether the text column is binary data, of which the first 256 bytes are yielded in hexadecimal.
        """
        known = self.tables.get(table)
        if known is None or (window is not None and "start" not in known):
            return
        chosen = [
            f"ifnull(CAST({_quoted(column)} AS INTEGER), {default})" if column in known else str(default)
            for column, default in columns.items()
        ]
        has_text = text in known
        if has_text:
            whole = f"substr(ifnull(CAST({_quoted(text)} AS TEXT), ''), 1, {_LONGEST_NAME})"
            chosen.append(f"hex(substr(CAST({_quoted(text)} AS BLOB), 1, 256))" if as_hex else whole)
        conditions = [where] if where else []
        if window is not None:
            conditions.append(f'"start" >= {window[0]} AND "start" < {window[1]}')
        condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        with self._errors():
            query = f"SELECT {', '.join(chosen)} FROM {_quoted(table)}{condition}"  # noqa: S608 # only known names
            with closing(self._connection.execute(query)) as cursor:
                while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                    self._count(len(rows))
                    texts = [row[-1] for row in rows] if has_text else []
                    numbers = (row[:-1] for row in rows) if has_text else rows
                    count = len(rows) * len(columns)
                    yield np.fromiter(chain.from_iterable(numbers), np.int64, count).reshape(-1, len(columns)), texts

    def strings(self, ids: Sequence[int]) -> dict[int, str]:
        """Return the strings with these ids, each cut to 4,096 characters. Unknown ids are left out."""
        if not {"id", "value"} <= self.tables.get("StringIds", frozenset()):
            return {}
        value = f"substr(CAST(value AS TEXT), 1, {_LONGEST_NAME})"
        strings: dict[int, str] = {}
        with self._errors():
            if not self._has_key("StringIds", "id"):  # without an index, reading the whole table once is faster
                wanted = set(ids)
                for number, text in self._connection.execute(f"SELECT id, {value} FROM StringIds"):  # noqa: S608
                    self._count(1)
                    if number in wanted and isinstance(text, str):
                        self._count_text(text)
                        strings[number] = text
                return strings
            for begin in range(0, len(ids), _STRINGS_AT_ONCE):
                listed = ", ".join(map(str, ids[begin : begin + _STRINGS_AT_ONCE]))
                rows = self._fetch(f"SELECT id, {value} FROM StringIds WHERE id IN ({listed})")  # noqa: S608
                for number, text in rows:
                    if isinstance(text, str):
                        self._count_text(text)
                        strings[number] = text
        return strings

    def texts(self, table: str, *columns: str, most: int = 1000) -> list[tuple[str, ...]]:
        """Return up to `most` rows of these columns as texts of at most 4,096 characters; [] if a column is missing."""
        if not set(columns) <= self.tables.get(table, frozenset()):
            return []
        chosen = ", ".join(f"substr(ifnull(CAST({_quoted(column)} AS TEXT), ''), 1, 4096)" for column in columns)
        with self._errors():
            return self._fetch(f"SELECT {chosen} FROM {_quoted(table)} LIMIT {most}")  # noqa: S608

    def enum(self, table: str) -> dict[int, str]:
        """Return the numbers of an enumeration → their symbolic names, in upper case."""
        pairs = self.texts(table, "id", "name")
        return {int(number): name.upper() for number, name in pairs if number.isdecimal() and len(number) < 10}

    def sampled_starts(self, table: str, samples: int) -> tuple[NDArray[np.int64], int]:
        """Return (starts of rows with `samples` evenly spaced ids, estimated number of rows of the table).

        Return (empty, 0) if the table has no column `start` or no row ids. Ids without a row are left out.
        """
        none = np.empty(0, np.int64)
        if "start" not in self.tables.get(table, frozenset()):
            return none, 0
        with self._errors():
            try:
                ((last,),) = self._fetch(f"SELECT ifnull(max(rowid), 0) FROM {_quoted(table)}")  # noqa: S608
                if not isinstance(last, int) or not 0 < last < 2**62:
                    return none, 0
                wanted = sorted({1 + last * index // samples for index in range(samples)})
                listed = ", ".join(map(str, wanted))
                rows = self._fetch(
                    f'SELECT CAST("start" AS INTEGER) FROM {_quoted(table)} WHERE rowid IN ({listed})'  # noqa: S608
                )
            except sqlite3.OperationalError:  # a table without row ids
                return none, 0
        starts = np.array([start for (start,) in rows if isinstance(start, int)], np.int64)
        return starts, min(last, self.size // _ROW_BYTES)

    def _has_key(self, table: str, column: str) -> bool:
        """Return whether an integer column is the table's primary key, so that looking rows up by it is fast."""
        # Of a row of `table_info`, 1 is the column's name, 2 its type, and 5 its position in the primary key, or 0.
        keys = [row for row in self._fetch(f"PRAGMA table_info({_quoted(table)})") if row[5]]
        return len(keys) == 1 and keys[0][1] == column and keys[0][2].upper() == "INTEGER"

    def _fetch(self, query: str) -> list[Any]:
        rows = self._connection.execute(query).fetchall()
        self._count(len(rows))
        return rows

    def _count(self, rows: int) -> None:
        self._rows_left -= rows
        if self._rows_left < 0:
            raise self._damaged("more rows than its size allows")

    def _count_text(self, text: str) -> None:
        self._characters_left -= len(text)
        if self._characters_left < 0:
            raise self._damaged("more text than its size allows")

    def _damaged(self, reason: object) -> UnreadableInputError:
        words = with_escapes(str(reason)[:200])
        return UnreadableInputError(f"{self._shown} is a damaged SQLite database: {words}", _COPY)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert SQLite's errors to `UnreadableInputError`."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._damaged(error) from error
        except (OverflowError, UnicodeDecodeError) as error:  # SQLite quotes damaged names in its messages
            raise self._damaged(error) from error


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
