"""Images to views to an aligned head, through the command line."""

from collections.abc import Callable
from pathlib import Path

from clinit.headtrain.protocol.stream.source import read_base_head
from tests.cli.calls import NETWORK, done


def test_align_takes_the_views_of_the_cache_in_turn(
    make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path
) -> None:
    cache, heads = tmp_path / "cache", {}
    places = ["--root", make_tree(train=8, val=3), "--out", cache, "--weights", tiny_weights]
    done("extract", *places, *NETWORK, "--dataset", "folder", *("--views", 3, "--view-seed", 5))
    for number, seen in ((3, "3 views (seed 5)"), (1, "1 view (seed 5)"), (0, "plain images")):
        out = tmp_path / f"{number}.safetensors"
        few = ("--device", "cpu", "--epochs", 4, "--views", number)
        shown = done("head", "align", cache, "--out", out, *few)
        assert f"on 24 rows, {seen}" in shown
        assert "Top-1 on 9 validation rows" in shown
        heads[number] = out.read_bytes()
    assert len(set(heads.values())) == 3
    facts = read_base_head(tmp_path / "3.safetensors")[1]["alignment"]
    assert (facts["views"], facts["view_seed"]) == (3, 5)
    assert str(facts["augmentation"]).startswith("random resized crop 32x32")
