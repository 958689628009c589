"""Sizes are those that polars knows, and no lie of a footer or a page header is believed."""

import io
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import polars as pl
import pytest

from clinit.extract.parquet_size import ParquetSize, parquet_size

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
Field = tuple[int, int, Any]


def varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def signed(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else ((-number) << 1) - 1)


def thrift(fields: Sequence[Field]) -> bytes:
    """Write a structure of the compact protocol; every field with its number in full."""
    return b"".join(
        bytes([kind]) + signed(number) + value(kind, content) for number, kind, content in fields
    ) + bytes([0])


def value(kind: int, content: Any) -> bytes:
    if kind in (I32, I64):
        return signed(content)
    if kind == BINARY:
        return varint(len(content)) + bytes(content)
    if kind == STRUCT:
        return thrift(content)
    of, items = content
    return bytes([0xF0 | of]) + varint(len(items)) + b"".join(value(of, item) for item in items)


def page(values: int, size: int, stored: int, *, encoding: int = 0, kind: int = 0) -> bytes:
    own = [(1, I32, values), (2, I32, encoding), (3, I32, 3), (4, I32, 3)]
    number = {0: 5, 2: 7, 3: 8}.get(kind, 5)
    head: list[Field] = [(1, I32, kind), (2, I32, size), (3, I32, stored), (number, STRUCT, own)]
    return thrift(head)


def column(start: int, length: int, values: int, extra: Sequence[Field] = ()) -> list[Field]:
    told: list[Field] = [
        (1, I32, 2),
        (2, LIST, (I32, [0, 3])),
        (3, LIST, (BINARY, [b"label"])),
        (4, I32, 0),
        (5, I64, values),
        (6, I64, length),
        (7, I64, length),
        (9, I64, start),
    ]
    return [*extra, (2, I64, 0), (3, STRUCT, told)]


def file(
    pages: bytes,
    groups: Sequence[tuple[Sequence[list[Field]], int]],
    rows: int,
    more: Sequence[Field] = (),
) -> bytes:
    """Return a file of one column of int64 that are there in every row."""
    root: list[Field] = [(4, BINARY, b"schema"), (5, I32, 1)]
    label: list[Field] = [(1, I32, 2), (3, I32, 0), (4, BINARY, b"label")]
    parts = [
        [(1, LIST, (STRUCT, columns)), (2, I64, len(pages)), (3, I64, count)]
        for columns, count in groups
    ]
    footer = thrift(
        [
            (1, I32, 1),
            (2, LIST, (STRUCT, [root, label])),
            (3, I64, rows),
            (4, LIST, (STRUCT, parts)),
            *more,
        ]
    )
    return b"PAR1" + pages + footer + struct.pack("<I", len(footer)) + b"PAR1"


NUMBERS = np.arange(5, dtype="<i8")
DATA = NUMBERS.tobytes()
PAGE = page(5, 40, 40) + DATA
WHOLE = file(PAGE, [([column(4, len(PAGE), 5)], 5)], 5)


def test_a_file_made_by_hand_is_what_polars_reads() -> None:
    assert pl.read_parquet(WHOLE)["label"].to_list() == NUMBERS.tolist()
    assert parquet_size(WHOLE) == ParquetSize(rows=5, page_bytes=40)


@pytest.mark.parametrize("compression", ["zstd", "snappy", "uncompressed", "gzip", "lz4"])
@pytest.mark.parametrize("rows", [0, 1, 300, 40_000])
def test_what_polars_writes_has_its_rows_and_its_bytes(compression: Any, rows: int) -> None:
    rng = np.random.default_rng(rows)
    table = pl.DataFrame(
        {
            "path": [f"{number:09d}" for number in rng.permutation(rows)],
            "size": rng.integers(2**40, size=rows),
            "some": pl.Series([None if i % 3 else i for i in range(rows)], dtype=pl.Int64),
            "flag": pl.Series(rng.integers(2, size=rows) > 0, dtype=pl.Boolean),
        }
    )
    content = io.BytesIO()
    table.write_parquet(
        content, compression=compression, row_group_size=10_000, metadata={"a": "ö" * 300}
    )
    found = parquet_size(content.getvalue())
    assert found.rows == rows
    # A path is 9 bytes and its length, a size 8 bytes; the other two are small.
    assert 21 * rows <= found.page_bytes <= 40 * rows + 500


def told(**lies: int) -> bytes:
    """Return `WHOLE` with one thing in it that is not so."""
    given = {"values": 5, "size": 40, "stored": 40, "encoding": 0, "kind": 0} | lies
    pages = page(
        **{name: given[name] for name in ("values", "size", "stored")},
        encoding=given["encoding"],
        kind=given["kind"],
    )
    pages += DATA
    length = given.get("length", len(pages))
    of_column = column(given.get("start", 4), length, 5)
    return file(pages, [([of_column], given.get("group", 5))], given.get("rows", 5))


@pytest.mark.parametrize(
    ("lies", "message"),
    [
        ({"rows": 2**60}, "it declares 1,152,921,504,606,846,976 rows, its parts 5"),
        ({"rows": 2**60, "group": 2**60}, "a column of 5 values stands beside 1,152,921"),
        ({"rows": -5, "group": -5}, "a column of 5 values stands beside -5 rows"),
        ({"values": 2**31 - 1}, "a column of 2,147,483,647 values stands beside 5 rows"),
        ({"values": -1}, "a page does not hold the values that it declares"),
        ({"values": 5, "kind": 2}, "a column of 0 values stands beside 5 rows"),
        ({"values": 2**31 - 1, "kind": 2}, "a page does not hold the values that it declares"),
        ({"stored": 41}, "a page is longer than its column"),
        ({"stored": -1}, "a page is longer than its column"),
        ({"size": -1}, "a page is longer than its column"),
        ({"size": 2**31 - 1}, r"2,147,483,647 bytes are compressed to [0-9]+"),
        ({"encoding": 7}, "its strings share their beginnings"),
        ({"kind": 1}, "its footer or a page header is damaged"),
        ({"start": 3}, "its columns are longer than the file"),
        ({"start": 2**62}, "its columns are longer than the file"),
        ({"length": 2**62}, "its columns are longer than the file"),
        ({"length": -1}, "its columns are longer than the file"),
        ({"length": 20}, "a page is longer than its column"),
    ],
)
def test_a_lie_is_found(lies: Mapping[str, int], message: str) -> None:
    assert parquet_size(told()) == ParquetSize(5, 40)
    with pytest.raises(ValueError, match=message):
        parquet_size(told(**lies))


def test_a_page_with_more_values_than_a_file_of_its_size_may_hold_is_refused() -> None:
    # One run of an RLE page: some bytes stand for any number of values.
    many = 2**30
    pages = page(many, 40, 40, encoding=8) + DATA
    content = file(pages, [([column(4, len(pages), many)], many)], many)
    with pytest.raises(ValueError, match=r"^it declares 1,073,741,824 rows in [0-9]+ bytes$"):
        parquet_size(content)


def test_parts_that_share_their_pages_are_refused() -> None:
    group = ([column(4, len(PAGE), 5)], 5)
    with pytest.raises(ValueError, match="its columns are longer than the file"):
        parquet_size(file(PAGE, [group] * 50, 250))


def test_a_column_in_another_file_is_refused() -> None:
    elsewhere = column(4, len(PAGE), 5, extra=[(1, BINARY, b"/etc/passwd")])
    with pytest.raises(ValueError, match="a column lies in another file"):
        parquet_size(file(PAGE, [([elsewhere], 5)], 5))


def nested(depth: int) -> list[Field]:
    return [(1, STRUCT, nested(depth - 1))] if depth else []


@pytest.mark.parametrize(
    ("footer", "message"),
    [
        (b"", "its footer or a page header is truncated"),
        (thrift([]), "its footer or a page header is damaged"),
        (thrift([(4, I64, 3)]), "its footer or a page header is damaged"),
        (thrift([(9, STRUCT, nested(50))]), "its footer is nested too deeply"),
        (bytes([LIST, 2, 0xF5]) + varint(2**60), "a list is longer than the footer"),
        (bytes([BINARY, 2]) + varint(2**60), "its footer or a page header is truncated"),
        (bytes([I64, 2]) + b"\xff" * 11, "its footer holds a number of more than 64 bits"),
        (bytes([13, 2]), "its headers hold a value of the unknown kind 13"),
    ],
)
def test_a_hostile_footer_is_refused(footer: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parquet_size(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")


def test_a_footer_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clinit.extract.parquet_size._MAX_VALUES", 1000)
    footer = bytes([0x19, 0xF3]) + varint(1001) + bytes(1001)
    with pytest.raises(ValueError, match="its headers hold more than 1,000 values"):
        parquet_size(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it does not begin and end with PAR1"),
        (b"PAR1PAR1", "it does not begin and end with PAR1"),
        (WHOLE[:-1], "it does not begin and end with PAR1"),
        (WHOLE[:-4] + b"PARE", "it does not begin and end with PAR1"),
        (WHOLE[:-8] + b"\xff\xff\xff\x7fPAR1", "its footer has 2,147,483,647 bytes, the file"),
    ],
)
def test_what_is_no_parquet_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parquet_size(content)


def test_any_changed_byte_gives_a_size_or_a_refusal() -> None:
    rng = np.random.default_rng(0)
    for place in range(len(WHOLE)):
        changed = bytearray(WHOLE)
        changed[place] = int(rng.integers(256))
        with suppress(ValueError):
            assert parquet_size(bytes(changed)).rows == 5
