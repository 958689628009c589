"""One side of an experiment: a cache, or several of one backbone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head, write_head
from clinit.headtrain.protocol.stream.source import Source, _concatenated, read_source, read_sources
from tests.headtrain.protocol.stream.made_caches import DIM, write_base, write_new, write_split
from tests.headtrain.protocol.stream.made_sides import rows


def test_what_a_record_says_of_a_side_names_its_data_and_no_more() -> None:
    told = Fingerprint({"backbone": "vit", "manifest": "m"})
    side = Source(
        rows("ab", [1, 1]), rows("ab", [1, 1]), path="x", fingerprint=told, val_manifest="v"
    )
    assert side.description == {
        "path": "x",
        "fingerprint": {"backbone": "vit"},
        "manifest_digest": "m",
        "val_manifest_digest": "v",
    }


def test_classes_of_one_name_are_one_and_groups_stay_apart() -> None:
    joined = _concatenated(
        [rows("bc", [1, 1]), replace(rows("ac", [1, 1]), groups=np.array([7, 7]))]
    )
    assert joined.class_names == ("a", "b", "c")
    assert joined.labels.tolist() == [1, 2, 0, 2]
    assert joined.groups.tolist() == [0, 1, 2, 2]
    assert _concatenated([rows("ba", [1, 1]), rows("cd", [1, 1])]).class_names == tuple("bacd")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base cache with a head, and a cache without val rows of five other classes."""
    folder = tmp_path_factory.mktemp("caches")
    write_split(folder / "other", "train", np.zeros((5, DIM)), 3, seed=5)
    return [write_base(folder / "base"), folder / "other"]


@pytest.mark.parametrize("memory", [None, 20_000])
def test_several_caches_are_one_side(pair: list[Path], memory: int | None) -> None:
    (side,) = read_sources(pair, memory=memory)
    one, other = map(read_source, pair)
    assert side.class_names == (*one.class_names, *other.class_names)
    assert side.train.is_loaded == (memory is None)
    for name in ("train", "val"):
        joined, parts = getattr(side, name), [getattr(each, name) for each in (one, other)]
        features = np.concatenate([part.features for part in parts])
        np.testing.assert_array_equal(joined.features[:], features)
        named = [part.class_names[label] for part in parts for label in part.labels]
        assert [joined.class_names[label] for label in joined.labels] == named
    assert side.head.weight.tobytes() == one.head.weight.tobytes()  # type: ignore[union-attr]
    assert side.description["path"] == str(pair[0])
    assert side.description["other_paths"] == [str(pair[1])]
    assert side.description["manifest_digest"] != one.description["manifest_digest"]
    assert any(note.startswith(str(pair[0])) for note in side.notes)


def test_caches_that_do_not_fit_together_are_refused(pair: list[Path], tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="train images are in more than one of the caches"):
        read_sources([pair[0], pair[0]])
    foreign = Fingerprint({"backbone": "made", "weights": "2"})
    write_split(tmp_path / "x", "train", np.zeros((2, DIM)), 2, fingerprint=foreign)
    with pytest.raises(CacheError, match=r"different backbones: weights \(1 / 2\)"):
        read_sources([pair[0], tmp_path / "x"])
    write_new(tmp_path / "new")
    weights = np.ones((5, DIM), np.float32)
    write_head(Head(weights, weights[:, 0], None), tmp_path / "new" / "head.safetensors")
    with pytest.raises(CacheError, match="hold different heads"):
        read_sources([pair[0], tmp_path / "new"])
