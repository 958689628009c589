"""What a command has written, as digests that two runs can be compared by, bit by bit.

Features, labels, tensors, tables and settings count. When something was done, how long it took,
and what an earlier attempt had already computed do not.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Results = dict[str, str]
"""By file below a folder; what does not count is left out."""

_TIMES = re.compile(
    r"seconds|elapsed|started|(^|_)load|_s$|per_s|^bound$|^shares$|timing|^time|^date|computed"
)
"""Keys of JSON documents and columns of tables that differ from run to run."""
_DIGESTS = ("sha256", "files", "digests")
_CODE = "git_commit"
_LOCK = re.compile(r"^\.?[\w-]*\.?lock$")
_DRAFT = re.compile(r"\.tmp-|\.draft|~$|\.part$|-journal$|-wal$|-shm$")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT[0-9:+]+")


def results(folder: Path, *places: Path) -> Results:
    """Return the digests of everything below `folder` that counts.

    Args:
        folder: What a command was given as its --out, or the folder of that.
        places: Further folders whose names stand in documents, and differ between trials.
    """
    return {
        str(path.relative_to(folder)): digest(path, (*places, folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not is_lock(path) and not is_draft(path, folder)
    }


def litter(folder: Path) -> list[str]:
    """Return the drafts that are left below `folder`: hidden files that are no locks."""
    found = [path for path in sorted(folder.rglob("*")) if is_draft(path, folder)]
    return [str(path.relative_to(folder)) for path in found if not is_lock(path)]


def is_lock(path: Path) -> bool:
    """Return whether a file is a lock, which may stay."""
    return bool(_LOCK.match(path.name)) or path.name.endswith(".lock")


def is_draft(path: Path, folder: Path) -> bool:
    """Return whether a file, or a folder it is in, is hidden or has the name of a draft."""
    parts = path.relative_to(folder).parts
    return any(part.startswith(".") or _DRAFT.search(part) for part in parts)


def digest(path: Path, places: Sequence[Path]) -> str:
    """Return the digest of a file; that of its bytes where it is none of the known formats."""
    try:
        content = _content(path, places)
    except Exception as error:
        content = f"unreadable: {type(error).__name__}".encode() + path.read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


def _content(path: Path, places: Sequence[Path]) -> bytes:
    if path.suffix == ".json":
        return _plain(json.loads(path.read_text(encoding="utf-8")), places)
    if path.suffix == ".parquet":
        import polars as pl

        table = pl.read_parquet(path.read_bytes())
        kept = [name for name in table.columns if not _TIMES.search(name)]
        return repr((table.select(kept).schema, table.select(kept).rows())).encode()
    if path.suffix in (".safetensors", ".checkpoint"):
        return _safetensors(path.read_bytes(), places)
    if path.suffix == ".db":
        return _study(path)
    if path.suffix == ".md":  # a model card says when
        text = _DATE.sub("@", path.read_text(encoding="utf-8"))
        return _unplaced(text, places).encode()
    return _unplaced(path.read_bytes().decode("latin-1"), places).encode("latin-1")


def _plain(value: Any, places: Sequence[Path]) -> bytes:
    return _unplaced(json.dumps(without_times(value), sort_keys=True), places).encode()


def _unplaced(text: str, places: Sequence[Path]) -> str:
    for place in places:
        text = text.replace(str(place), "@")
    return text


def without_times(value: Any) -> Any:
    """Return a document without its times."""
    if isinstance(value, dict):
        kept = {k: without_times(v) for k, v in value.items() if not _is_left_out(k, v)}
        # Of a sweep: two grids may be given in either order.
        return kept | {k: sorted(v) for k, v in kept.items() if k == "banks"}
    if isinstance(value, list):
        return [without_times(each) for each in value]
    return value


def _is_left_out(key: str, value: Any) -> bool:
    # `run` of cache.json: the circumstances. Digests are of files with times in them, or of files
    # that are compared themselves; of what earlier attempts computed, that it is there counts.
    circumstances = isinstance(value, dict) and "computed_rows" in value
    shared = key == "activations" and not isinstance(value, str)
    return bool(_TIMES.search(key)) or circumstances or shared or key in (*_DIGESTS, _CODE)


def _safetensors(content: bytes, places: Sequence[Path]) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    told = {name: _told(text) for name, text in header.pop("__metadata__", {}).items()}
    tensors = []
    for name in sorted(header):
        start, stop = header[name]["data_offsets"]
        if _TIMES.search(name.rsplit(".", 1)[-1]):
            continue
        data = hashlib.sha256(content[8 + length + start : 8 + length + stop]).hexdigest()
        tensors.append((name, header[name]["dtype"], header[name]["shape"], data))
    return _plain(told, places) + repr(tensors).encode()


def _told(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _study(path: Path) -> bytes:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as study:
        rows = study.execute(
            "select t.number, t.state, p.param_name, p.param_value, v.value from trials t"
            " left join trial_params p on p.trial_id = t.trial_id"
            " left join trial_values v on v.trial_id = t.trial_id order by 1, 3"
        ).fetchall()
    study.close()
    return repr(rows).encode()


def compare(found: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return which files are missing, and which are other or too many."""
    missing = [name for name in wanted if name not in found]
    other = [name for name in found if found[name] != wanted.get(name)]
    return missing, other
