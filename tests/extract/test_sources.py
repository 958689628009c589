"""The same images in folders, tar shards and Parquet files."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from clinit.errors import ExperimentError
from clinit.extract.cache.read import CacheSplit, open_cache
from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.scan import available_splits, scan
from clinit.extract.work.run import ExtractConfig, extract
from clinit.headtrain.top.inputs import open_side
from tests.extract.dataset.made import make_parquet, make_tar
from tests.extract.work.made import tiny_config

KINDS = ("folder", "webdataset", "huggingface")


@pytest.fixture
def config(tiny_weights: Path) -> ExtractConfig:
    return tiny_config(tiny_weights)


@pytest.fixture
def roots(make_tree: Callable[..., Path], tmp_path: Path) -> Mapping[str, Path]:
    """The images of three classes, shuffled into two tar and two Parquet files a split."""
    folder = make_tree()
    for split in ("train", "val"):
        paths = sorted((folder / split).glob("*/*.png"))
        order = np.random.default_rng(0).permutation(len(paths))
        for part in range(2):
            chosen = [paths[i] for i in order[part::2]]
            members = [(f"{p.parent.name}-{p.stem}.png", p.read_bytes()) for p in chosen]
            labels = [(f"{p.parent.name}-{p.stem}.txt", p.parent.name.encode()) for p in chosen]
            make_tar(tmp_path / "webdataset" / f"{split}-{part}.tar", [*members, *labels])
            make_parquet(
                tmp_path / "huggingface" / split / f"{part}.parquet",
                [path.read_bytes() for path in chosen],
                ["abc".index(path.parent.name) for path in chosen],
                names="abc",
                row_group_size=3,
            )
    return {"folder": folder, **{kind: tmp_path / kind for kind in KINDS[1:]}}


def run(kind: str, root: Path, out: Path, config: ExtractConfig) -> Mapping[str, CacheSplit]:
    manifests = {s: scan(kind, root, s).manifest for s in available_splits(kind, root)}
    list(extract(manifests, root, out, config))
    return open_cache(out).splits


def test_the_same_images_have_the_same_features_wherever_they_lie(
    roots: Mapping[str, Path], config: ExtractConfig, tmp_path: Path
) -> None:
    found = {}
    for kind, root in roots.items():
        for name, split in run(kind, root, tmp_path / "caches" / kind, config).items():
            images = images_of(split.manifest.table, root)
            features = split.load().features
            found[kind, name] = {images.read(row): features[row] for row in range(split.num_rows)}
            assert split.class_names == ("a", "b", "c")
            named = {images.read(row): split.labels[row] for row in range(split.num_rows)}
            for path in (roots["folder"] / name).glob("*/*.png"):
                assert named[path.read_bytes()] == "abc".index(path.parent.name)
    for name, images_of_split in (("train", 15), ("val", 6)):
        reference = found["folder", name]
        assert len(reference) == images_of_split
        for kind in KINDS[1:]:
            assert found[kind, name].keys() == reference.keys()
            for content, row in found[kind, name].items():
                np.testing.assert_array_equal(row, reference[content])


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_containers_of_a_cache_are_looked_for_before_top_blocks_are_trained(
    kind: str, roots: Mapping[str, Path], config: ExtractConfig, tmp_path: Path
) -> None:
    run(kind, roots[kind], tmp_path / "cache", config)
    assert open_side(tmp_path / "cache", None, option="--base-root").root == roots[kind]
    with pytest.raises(
        ExperimentError, match=r"there is no .*/nowhere/(train-0\.tar|train/0\.parquet)$"
    ) as caught:
        open_side(tmp_path / "cache", Path("/nowhere"), option="--base-root")
    assert f"(at extraction: {roots[kind]})" in caught.value.remedy
