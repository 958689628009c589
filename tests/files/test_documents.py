"""Documents: a changed byte is found, and what is wrong is said by its field."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from clinit.errors import CacheError
from clinit.files.documents import DocumentKind

KIND = DocumentKind(
    title="the note of a test",
    format="note/2",
    older=("note/1",),
    error=CacheError,
    remedy="Write it again.",
)
CONTENT = {"rows": 3, "name": "größe", "shards": [{"rows": 1}, {"rows": 2}], "share": 0.1}


@dataclass(frozen=True, slots=True)
class Shard:
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    rows: int
    name: str
    shards: tuple[Shard, ...]
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ValueError(f"rows must not be negative, got {self.rows}")


def write(folder: Path, content: object) -> Path:
    path = folder / "note.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CacheError) as caught:
        KIND.read(path, Note)
    assert caught.value.remedy == "Write it again."
    return str(caught.value).removeprefix(f"{path} ")


def test_what_was_written_is_read_in_its_types(tmp_path: Path) -> None:
    KIND.write(tmp_path / "note.json", CONTENT)
    found = KIND.read(tmp_path / "note.json", Note)
    assert found == Note(rows=3, name="größe", shards=(Shard(1), Shard(2)), share=0.1)


def test_no_flipped_bit_changes_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    KIND.write(path, CONTENT)
    written, expected = path.read_bytes(), KIND.read(path, Note)
    generator, accepted = np.random.default_rng(0), 0
    for place in range(len(written)):
        changed = bytearray(written)
        changed[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(changed)
        try:
            assert KIND.read(path, Note) == expected, changed
            accepted += 1  # white space that is still white space
        except CacheError:
            pass
    assert accepted < len(written) / 5


def test_a_document_of_today_needs_its_digest_and_one_of_an_older_format_none(
    tmp_path: Path,
) -> None:
    assert KIND.read(write(tmp_path, {"format": "note/1", **CONTENT}), Note).rows == 3
    path = write(tmp_path, {"format": "note/2", **CONTENT})
    assert refusal(path) == "is damaged: it has changed since it was written"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": "3"}, "is damaged: Expected `int`, got `str` - at `$.rows`"),
        ({"rows": True}, "is damaged: Expected `int`, got `bool` - at `$.rows`"),
        ({"rows": -1}, "is damaged: rows must not be negative, got -1"),
        (
            {"shards": [{"rows": None}]},
            "is damaged: Expected `int`, got `null` - at `$.shards[0].rows`",
        ),
        ({"shards": [{}]}, "is damaged: Object missing required field `rows` - at `$.shards[0]`"),
        ({"name": 3}, "is damaged: Expected `str`, got `int` - at `$.name`"),
        (
            {"format": "other/1"},
            "is not the note of a test: its format is 'other/1', expected 'note/2'",
        ),
        ({"format": []}, "is not the note of a test: its format is [], expected 'note/2'"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    assert refusal(write(tmp_path, {"format": "note/1", **CONTENT, **change})) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is damaged: Expecting value: line 1 column 1 (char 0)"),
        ("[1]", "is damaged: it contains [1] instead of fields"),
        ("[" * 200_000, "is damaged: it is nested too deeply"),
        ('{"a": ' * 200_000, "is damaged: it is nested too deeply"),
        ('{"a": NaN}', "is damaged: it contains NaN, which is not JSON"),
        ('{"a": -1e999}', "is damaged: it contains '-1e999', which is too large for"),
        ('{"a": ' + "9" * 5000 + "}", "is damaged: Exceeds the limit (4300 digits)"),
    ],
)
def test_a_hostile_text_is_refused_in_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "note.json"
    path.write_text(text)
    assert refusal(path).startswith(message)


def test_a_document_beyond_the_bound_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, {"format": "note/1", **CONTENT})
    with pytest.raises(
        CacheError, match=f"is {path.stat().st_size} bytes long, expected at most 5"
    ):
        replace(KIND, max_bytes=50).read(path, Note)
