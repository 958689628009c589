"""What reading a Parquet file will take, before it is read.

A file of some kilobytes can declare billions of rows or pages of gigabytes. polars reserves
what a file declares, and where that fails the process ends without a word. So the footer and the
header of every page are read here first, and what they declare is added up; none of it is
believed that the bytes of the file do not bear out.

Only flat columns are read, as all tables of clinit have, and structures of them, unless the caller
knows of others. Strings that share their beginnings (DELTA_BYTE_ARRAY) are refused: they alone can
become larger than the page that holds them.

Source: `parquet.thrift` and `Encodings.md` of the Apache Parquet format; "Thrift compact
protocol" of Apache Thrift.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from mmap import mmap
from typing import Any

_MAGIC = b"PAR1"
_DELTA_BYTE_ARRAY = 7
_MAX_VALUES = 2**20
"""Most values in a footer, and in the headers of all pages."""
_MAX_DEPTH = 12
_MAX_DIGITS = 10
"""Most bytes of a number, each with seven of its 64 bits."""
_INTEGER = 6
_TRUNCATED = "its footer or a page header is truncated"
_FREE_ROWS, _ROWS_PER_BYTE = 2**20, 8
_FREE_BYTES, _EXPANSION = 2**28, 256
"""What any file may declare, and what a larger one may by its size. Manifests of names in a
sequence have 2.4 rows per byte, and their pages expand 60-fold; others have far less."""
_HEADER = {0: 5, 2: 7, 3: 8}
"""Field of a page's own header, by kind: data, dictionary, data of version 2."""


@dataclass(frozen=True, slots=True)
class ParquetSize:
    """Rows of a file, and the bytes of its pages after decompression."""

    rows: int
    page_bytes: int


def parquet_size(
    content: bytes | mmap, columns: Collection[bytes] | None = None, *, nested: bool = False
) -> ParquetSize:
    """Return what a Parquet file declares.

    Args:
        content: The whole file.
        columns: Names of the columns that count, with all that is inside them; all when None.
        nested: Whether a column may hold several values per row.

    Raises:
        ValueError: If it is none, is truncated, declares what it does not hold, or more than a
            file of its size may.
    """
    end = _footer(content)
    try:
        return _size(content, end, columns, nested=nested)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError("its footer or a page header is damaged") from error


def row_groups(content: bytes | mmap) -> tuple[int, ...]:
    """Return the rows of each row group of a file that `parquet_size` has read."""
    footer = _Thrift(content, _footer(content), len(content) - 8).struct()
    return tuple(group[3] for group in footer[4])


def _footer(content: bytes | mmap) -> int:
    """Return where the footer begins."""
    if len(content) < 12 or content[:4] != _MAGIC or content[-4:] != _MAGIC:
        raise ValueError(f"it does not begin and end with {_MAGIC.decode()}")
    length = int.from_bytes(content[-8:-4], "little")
    end = len(content) - 8 - length
    if end < 4:
        raise ValueError(f"its footer has {length:,} bytes, the file {len(content):,}")
    return end


def _size(
    content: bytes | mmap, end: int, columns: Collection[bytes] | None, *, nested: bool
) -> ParquetSize:
    footer = _Thrift(content, end, len(content) - 8).struct()
    headers = _Thrift(content, 4, end)
    compressed, pages = 0, 0
    for group in footer[4]:
        for column in group[1]:
            if 1 in column:
                raise ValueError("a column lies in another file")
            chunk = column[3]
            if columns is not None and chunk[3][0] not in columns:
                continue
            first = chunk.get(11, chunk[9])  # the page of the dictionary, if there is one
            compressed += chunk[7]
            if compressed > end or not 4 <= first <= first + chunk[7] <= end:
                raise ValueError("its columns are longer than the file")
            rows = None if nested else group[3]
            pages += _page_bytes(headers, range(first, first + chunk[7]), rows=rows)
    rows = sum(group[3] for group in footer[4])
    if footer[3] != rows:
        raise ValueError(f"it declares {footer[3]:,} rows, its parts {rows:,}")
    if rows > max(_FREE_ROWS, _ROWS_PER_BYTE * len(content)):
        raise ValueError(f"it declares {rows:,} rows in {len(content):,} bytes")
    if pages > max(_FREE_BYTES, _EXPANSION * len(content)):
        raise ValueError(f"{pages:,} bytes are compressed to {len(content):,}")
    return ParquetSize(rows, pages)


def _page_bytes(headers: _Thrift, place: range, *, rows: int | None) -> int:
    """Add up the pages of one column of a row group; `place` is where they are."""
    total, values = 0, 0
    headers.place = place.start
    while headers.place < place.stop:
        page = headers.struct()
        size, stored = page[2], page[3]
        header = page[_HEADER[page[1]]]
        if size < 0 or stored < 0 or headers.place + stored > place.stop:
            raise ValueError("a page is longer than its column")
        count = header[1]
        if count < 0 or (page[1] == 2 and 4 * count > size):
            raise ValueError("a page does not hold the values that it declares")
        if page[1] != 2:
            values += count
            if header[2 if page[1] == 0 else 4] == _DELTA_BYTE_ARRAY:
                raise ValueError("its strings share their beginnings")
        headers.place += stored
        total += size
    if rows is not None and values != rows:
        raise ValueError(f"a column of {values:,} values stands beside {rows:,} rows")
    return total


class _Thrift:
    """Reads structures of the compact protocol as dictionaries by field number.

    In few calls per value: every table that is read has hundreds of values in its footer.
    """

    def __init__(self, content: bytes | mmap, start: int, stop: int) -> None:
        self.place = start
        self._content = content
        self._stop = stop
        self._values = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Read the structure at `place`, and go behind it."""
        fields: dict[int, Any] = {}
        number = 0
        content, stop = self._content, self._stop
        while self.place < stop:
            head = content[self.place]
            self.place += 1
            if head & 15 == 0:
                return fields
            number = number + (head >> 4) if head >> 4 else self._value(_INTEGER, depth)
            fields[number] = self._value(head & 15, depth)
        raise ValueError(_TRUNCATED)

    def _value(self, kind: int, depth: int) -> Any:
        self._values += 1
        if self._values > _MAX_VALUES:
            raise ValueError(f"its headers hold more than {_MAX_VALUES:,} values")
        if depth > _MAX_DEPTH:
            raise ValueError("its footer is nested too deeply")
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._bytes(1)[0]
            case 4 | 5 | 6:
                number = self._unsigned()
                return (number >> 1) ^ -(number & 1)
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._unsigned())
            case 9 | 10:
                return self._list(depth)
            case 12:
                return self.struct(depth + 1)
        raise ValueError(f"its headers hold a value of the unknown kind {kind}")

    def _list(self, depth: int) -> list[Any]:
        (head,) = self._bytes(1)
        length = head >> 4 if head >> 4 < 15 else self._unsigned()
        if length > self._stop - self.place:  # each takes a byte or more
            raise ValueError("a list is longer than the footer")
        kind = head & 15
        if kind in (1, 2):  # outside of a structure a truth value takes a byte
            return list(self._bytes(length))
        return [self._value(kind, depth + 1) for _ in range(length)]

    def _bytes(self, length: int) -> bytes:
        start, self.place = self.place, self.place + length
        if self.place > self._stop:
            raise ValueError(_TRUNCATED)
        return self._content[start : self.place]

    def _unsigned(self) -> int:
        number, shift = 0, 0
        for byte in self._content[self.place : min(self.place + _MAX_DIGITS, self._stop)]:
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                self.place += shift // 7
                return number
        if shift < 7 * _MAX_DIGITS:
            raise ValueError(_TRUNCATED)
        raise ValueError("its footer holds a number of more than 64 bits")
