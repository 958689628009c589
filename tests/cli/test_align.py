"""Images to views to an aligned head, through the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from clinit.headtrain.protocol.stream.source import read_base_head
from tests.cli.calls import NETWORK, call, done


@pytest.fixture
def extract(
    make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path
) -> Callable[..., Path]:
    root = make_tree(train=8, val=3)

    def run(*arguments: object) -> Path:
        out = tmp_path / "cache"
        places = ["--root", root, "--out", out, "--weights", tiny_weights]
        done("extract", *places, *NETWORK, "--dataset", "folder", *arguments)
        return out

    return run


def align(cache: Path, out: Path, *arguments: object) -> Result:
    return call("head", "align", cache, "--out", out, "--device", "cpu", "--epochs", 4, *arguments)


def test_align_takes_the_views_of_the_cache_in_turn(
    extract: Callable[..., Path], tmp_path: Path
) -> None:
    cache, heads = extract("--views", 3, "--view-seed", 5), {}
    for views, seen in ((3, "3 views (seed 5)"), (1, "1 view (seed 5)"), (0, "plain images")):
        out = tmp_path / f"{views}.safetensors"
        shown = align(cache, out, "--views", views)
        assert f"on 24 rows, {seen}" in shown.output
        assert "Top-1 on 9 validation rows" in shown.output
        heads[views] = out.read_bytes()
    assert len(set(heads.values())) == 3
    facts = read_base_head(tmp_path / "3.safetensors")[1]["alignment"]
    assert (facts["views"], facts["view_seed"]) == (3, 5)
    assert str(facts["augmentation"]).startswith("random resized crop 32x32")
