"""cache.json: read in its types, and compared with the plan and the shards."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clinit.errors import CacheError
from clinit.extract.cache.head import Head, Top1, read_head, write_head
from clinit.extract.cache.read import CacheSplit, open_cache, open_split, shard_problem
from clinit.extract.cache.summary import NamedHead, write_summary
from clinit.extract.work import import_features as module
from clinit.extract.work.import_features import import_features
from clinit.extract.work.options import ImportConfig

ROWS, DIM = 20, 6
BAD = (3, 4, 11)


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheSplit:
    """Twenty rows in three shards; three of them are not finite."""
    monkeypatch.setattr(module, "SHARD_ROWS", 7)
    labels = np.arange(ROWS) * 4 // ROWS
    features = np.eye(4, DIM, dtype=np.float32)[labels]
    features[list(BAD)] = np.nan
    np.save(tmp_path / "x.npy", features)
    np.save(tmp_path / "y.npy", labels)
    config = ImportConfig(backbone="clip")
    split = import_features(tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "cache", config)
    head = Head(np.eye(4, DIM), np.zeros(4), tuple("0123"))
    write_head(head, tmp_path / "cache" / "head.safetensors")
    run = split.summary.run
    write_summary(split.path, split.plan, split.manifest, NamedHead(head, "made"), run)
    return open_split(split.path)


def test_the_summary_says_what_the_split_holds(split: CacheSplit) -> None:
    told = split.summary
    assert (told.num_rows, told.num_valid, told.dim, told.dtype) == (20, 17, 6, "float32")
    assert [(shard.name, shard.rows, shard.non_finite) for shard in told.shards] == [
        ("shard-00000.h5", 7, 2),
        ("shard-00001.h5", 7, 1),
        ("shard-00002.h5", 6, 0),
    ]
    assert [(shard.min, shard.max) for shard in told.shards] == [(0, 1)] * 3
    assert [(entry.row, entry.path) for entry in told.invalid] == [(r, f"{r:02d}") for r in BAD]
    assert told.head.top1 == Top1(17, 17)
    assert told.run.features.path.endswith("x.npy")
    assert np.flatnonzero(~split.valid).tolist() == list(BAD)


Change = Callable[[dict[str, Any]], object]


def changed(**fields: object) -> Change:
    return lambda content: content.update(fields)


def inside(field: str, place: int | str, value: object = None, **fields: object) -> Change:
    """Change fields of an entry in a list, or a field of an object."""
    if isinstance(place, str):
        return lambda content: content[field].update({place: value})
    return lambda content: content[field][place].update(fields)


DAMAGES = [
    (changed(dtype="int8"), "`$.dtype`"),
    (changed(plan="another"), "belong to different extractions"),
    (inside("run", "images_per_s", -3), "`$.run.images_per_s`"),
    (inside("run", "shares", {"read": "a"}), "`$.run.shares[...]`"),
    (lambda c: c.pop("invalid"), "missing required field `invalid`"),
]


def edit(split: CacheSplit, change: Change) -> Path:
    """Change cache.json as an earlier version could have written it: without a seal."""
    path = split.path / "cache.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    content["format"] = "clinit-cache/1"
    change(content)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(("change", "message"), DAMAGES)
def test_a_summary_with_a_wrong_field_or_of_another_plan_is_refused(
    split: CacheSplit, change: Change, message: str
) -> None:
    path = edit(split, change)
    with pytest.raises(CacheError) as caught:
        open_split(split.path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "shard"),
    [
        (inside("invalid", 0, row=2), 0),
        (inside("invalid", 2, row=13), 1),
        (inside("invalid", 1, reason="another"), 0),
    ],
)
def test_a_shard_with_other_invalid_rows_than_the_summary_is_refused(
    split: CacheSplit, change: Change, shard: int
) -> None:
    edit(split, change)
    found = open_split(split.path)
    assert [shard_problem(found.path, found.plan, index, found) is None for index in range(3)] == [
        index != shard for index in range(3)
    ]
    with pytest.raises(CacheError, match=r"differ from cache\.json"):
        found.load()


def test_a_head_that_is_not_the_one_that_was_judged_is_refused(split: CacheSplit) -> None:
    path = split.path.parent / "head.safetensors"
    head = read_head(path)
    write_head(replace(head, weight=2 * head.weight), path)
    with pytest.raises(CacheError, match=r"head\.safetensors is not the head that was stored with"):
        open_cache(path.parent)
    edit(split, lambda content: content["head"].pop("tensors"))
    opened = open_cache(path.parent)  # an earlier version did not say which head it was
    assert opened.head.weight[0, 0] == 2
