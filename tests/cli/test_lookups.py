"""Commands that look something up, or sum and copy features: what they print and write."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from clinit.extract.cache.read import open_cache
from clinit.headtrain.protocol.stream.summed import read_summed
from tests.cli.calls import call, checked


def test_known_data_sets_are_listed_with_their_sizes_classes_and_layouts() -> None:
    listed = checked(call("manifest", "list"))
    assert all(fact in listed for fact in ("imagenet1k", "1,281,167", "places365", "36,500"))
    names = checked(call("manifest", "show", "places365", "--classes")).split()
    assert len(names) == 365
    shown = checked(call("manifest", "show", "places365"))
    assert all(fact in shown for fact in (names[0], names[-1], "1,803,460", "Layouts"))


def test_statistics_of_parts_are_the_statistics_of_the_cache(
    tiny_run: Path, tmp_path: Path
) -> None:
    cache = tiny_run.parent / "caches" / "base"
    whole, merged = tmp_path / "whole.safetensors", tmp_path / "merged.safetensors"
    told = checked(call("statistics", cache, "--out", whole))
    sums = read_summed(whole).statistics
    assert f"{(sums.num_classes + sums.dim) * sums.dim:,} numbers" in told
    for part in ("1/2", "2/2"):
        assert not merged.exists()
        checked(call("statistics", cache, "--part", part, "--out", merged))
    np.testing.assert_allclose(read_summed(merged).statistics.gram, sums.gram, rtol=1e-12)
    both = ("--part", "1/2", "--ray", "auto")
    assert "--part and --ray" in call("statistics", cache, *both, "--out", whole).output


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_exported_split_has_the_features_of_its_cache(
    split: str, tiny_run: Path, tmp_path: Path
) -> None:
    cache, out = tiny_run.parent / "caches" / "new", tmp_path / "rows.safetensors"
    told = checked(call("cache", "export", cache, out, "--split", split))
    held = open_cache(cache).split(split).load()
    assert f"{len(held.labels):,} rows" in told
    np.testing.assert_array_equal(load_file(out)["features"], held.features)
