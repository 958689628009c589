"""Heads of a cache, through the command line: its linear probe, and one aligned with its views."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import clinit
from clinit.errors import HeadError
from clinit.extract.cache.head import read_head
from clinit.headtrain.protocol.stream.source import read_base_head
from tests.cli.calls import NETWORK, call, done
from tests.headtrain.probe.digits import NAMES, digits

QUICK = ["--c", 0.01, "--c", 1, "--device", "cpu"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    (folder / "names.txt").write_text("\n".join(NAMES))
    for split, rows in (("train", digits().train), ("val", digits().val)):
        np.save(folder / f"{split}.npy", rows.features)
        np.save(folder / f"{split}-labels.npy", rows.labels)
        files = (folder / f"{split}.npy", folder / f"{split}-labels.npy")
        options = ("--backbone", "pixels", "--classes", folder / "names.txt", "--split", split)
        done("cache", "import", *files, *options, "--out", folder / "cache")
    return folder / "cache"


def test_a_probe_prints_protocol_grid_and_accuracy_and_writes_its_head(
    cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "probe.safetensors"
    shown = call("head", "fit", cache, *QUICK, "--out", out)
    for fact in (
        f"{cache}: multinomial logistic regression",
        "Top-1 on 60 held-out training rows, in %",
        "Note: the best --c, 1",
        "On 200 validation rows: top-1",
        "(C 1)",
        f"Head at {out}",
    ):
        assert fact in shown.output
    assert read_head(out).class_names == NAMES
    assert call("diagnose", cache, "--head", out, "--split", "val").exit_code == 0
    assert isinstance(call("head", "fit", cache, *QUICK, "--out", out).exception, HeadError)
    before = out.read_bytes()
    assert call("head", "fit", cache, *QUICK, "--out", out, "--overwrite").exit_code == 0
    assert out.read_bytes() == before  # the same head


def test_json_contains_what_the_library_returns(cache: Path) -> None:
    told = json.loads(call("head", "fit", cache, "--c", 0.1, "--c", 1, "--json").stdout)
    found = clinit.probe(cache, c=[0.1, 1])
    assert told["top1"] == found.top1
    assert told["chosen"] == {"c": 1.0} == dict(found.chosen)
    assert [point["top1"] for point in told["grid"]] == [point.top1 for point in found.grid]
    assert told["cache"]["path"] == str(cache)


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
