from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clinit.errors import CacheError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.headtrain.stream.source import Source, check_same_backbone


def rows(names: str, dim: int = 4) -> FeatureSet:
    return FeatureSet(np.zeros((2, dim), np.float16), np.arange(2), tuple(names))


def test_fingerprints_may_differ_in_the_manifest_only() -> None:
    one = Fingerprint({"a": "1", "manifest": "x"})
    check_same_backbone(one, Fingerprint({"a": "1", "manifest": "y"}))
    with pytest.raises(CacheError, match=r"a \(1 / 2\), b \(nothing / 3\)"):
        check_same_backbone(one, Fingerprint({"a": "2", "b": "3", "manifest": "x"}))


@pytest.mark.parametrize(
    ("kinds", "remedy"),
    [
        ((False, False), "Extract both with the same options of `clinit extract`."),
        ((True, False), "One of them was imported: take both from `clinit extract`, or"),
        ((False, True), "One of them was imported: take both from `clinit extract`, or"),
        ((True, True), "Import features of one extractor and type for both, with the same"),
    ],
)
def test_the_remedy_for_two_backbones_fits_features_from_elsewhere(
    kinds: tuple[bool, bool], remedy: str
) -> None:
    one, other = (
        Fingerprint.of_import(backbone=name, dtype="float16")
        if is_imported
        else Fingerprint({"backbone": name, "weights": "1"})
        for name, is_imported in zip(("clip", "dino"), kinds, strict=True)
    )
    with pytest.raises(CacheError) as caught:
        check_same_backbone(one, other)
    assert caught.value.remedy.startswith(remedy)


def test_splits_with_different_classes_are_refused() -> None:
    with pytest.raises(CacheError, match="train and val do not have the same list of classes"):
        Source(rows("ab"), rows("ac"), path="x")


def test_splits_of_different_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="train is 4 wide, val 5"):
        Source(rows("ab"), rows("ab", dim=5))


def test_what_a_record_says_of_a_side_names_its_data_and_no_more() -> None:
    told = Fingerprint({"backbone": "vit", "manifest": "m"})
    side = Source(rows("ab"), rows("ab"), path="x", fingerprint=told, val_manifest="v")
    assert side.description == {
        "path": "x",
        "fingerprint": {"backbone": "vit"},
        "manifest_digest": "m",
        "val_manifest_digest": "v",
    }


def test_a_source_is_shown_in_one_line() -> None:
    train, val = rows("ab"), rows("ab")
    head = Head(np.zeros((2, 4), np.float32), np.zeros(2, np.float32), ("a", "b"))
    shown = repr(Source(train, val, path="caches/base", head=head))
    assert shown == f"<Source caches/base: train {train}, val {val}, head {head}>"
    assert repr(head) == "<Head: 2 rows of 4 weights>"
    assert repr(replace(head, alignment={"loss": "mse"})) == "<Head: aligned, 2 rows of 4 weights>"
    assert repr(Source(train, val)).endswith("head None>")
