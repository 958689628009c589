"""Images to views to an aligned head, through the command line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import CacheError, ClinitError
from clinit.extract.cache.head import read_head
from clinit.headtrain.stream.base_head import read_base_head

NETWORK = [
    "--backbone=convnextv2_atto",
    "--model-arg=depths=(1,1,1,1)",
    "--model-arg=dims=(4,8,8,12)",
    "--input-size=32",
    "--device=cpu",
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def extract(
    make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path
) -> Callable[..., Path]:
    root = make_tree(train=8, val=3)

    def call(*arguments: object, name: str = "cache") -> Path:
        out = tmp_path / name
        places = ["--root", root, "--out", out, "--weights", tiny_weights]
        shown = run("extract", *places, *NETWORK, "--dataset", "folder", *arguments)
        assert shown.exit_code == 0, shown.output
        return out

    return call


def align(cache: Path, out: Path, *arguments: object) -> Result:
    return run("align", cache, "--out", out, "--device", "cpu", "--epochs", 4, *arguments)


def facts(out: Path) -> dict[str, object]:
    found = read_head(out).alignment
    assert found is not None
    return dict(found)


def refused(result: Result) -> ClinitError:
    assert isinstance(result.exception, ClinitError), result.output
    return result.exception


def test_align_takes_the_views_of_the_cache_in_turn_and_says_so(
    extract: Callable[..., Path], tmp_path: Path
) -> None:
    cache = extract("--views", 3, "--view-seed", 5)
    shown = align(cache, tmp_path / "all.safetensors")
    assert shown.exit_code == 0, shown.output
    assert "on 24 rows, 3 views in turn (seed 5)" in shown.output
    assert "Top-1 on 9 validation rows" in shown.output
    told = facts(tmp_path / "all.safetensors")
    assert (told["views"], told["view_seed"], told["train_rows"]) == (3, 5, 24)
    assert str(told["augmentation"]).startswith("random resized crop 32x32")
    of_record = read_base_head(tmp_path / "all.safetensors")[1]["alignment"]
    for name in ("views", "view_seed", "augmentation"):
        assert of_record[name] == told[name]
    one = align(cache, tmp_path / "one.safetensors", "--views", 1)
    assert "on 24 rows, 1 view (seed 5)" in one.output
    plain = align(cache, tmp_path / "plain.safetensors", "--views", 0)
    assert "on 24 rows, without augmentation (0 views)" in plain.output
    heads = {(tmp_path / f"{name}.safetensors").read_bytes() for name in ("all", "one", "plain")}
    assert len(heads) == 3


def test_an_interrupted_view_stops_align_but_not_what_needs_plain_features(
    extract: Callable[..., Path], tmp_path: Path
) -> None:
    cache = extract("--views", 2)
    (cache / "views" / "1" / "cache.json").unlink()
    error = refused(align(cache, tmp_path / "head.safetensors"))
    assert f"{cache}/views/1 holds 1 of 1 shards: its extraction was interrupted" in str(error)
    assert align(cache, tmp_path / "plain.safetensors", "--views", 0).exit_code == 0
    extract("--views", 2)
    assert align(cache, tmp_path / "head.safetensors").exit_code == 0


def test_a_view_of_another_backbone_is_refused(
    extract: Callable[..., Path], tmp_path: Path
) -> None:
    cache, other = extract("--views", 2), extract("--views", 2, "--dtype=float32", name="other")
    shutil.rmtree(cache / "views" / "1")
    shutil.copytree(other / "views" / "1", cache / "views" / "1")
    error = refused(align(cache, tmp_path / "head.safetensors"))
    assert isinstance(error, CacheError)
    assert f"{cache}/views/1 is no view of the train split beside it" in str(error)
    assert "have dtype = float32, those of the split dtype = float16" in str(error)
    assert f"Remove {cache}/views/1" in error.remedy
