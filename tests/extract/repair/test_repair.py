"""What is damaged is written again, as it was; what is whole is not touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.errors import ClinitError
from clinit.extract.head import Head, write_head
from clinit.extract.import_features import ImportConfig, import_features
from clinit.extract.merge import merge
from clinit.extract.repair.parts import DamagedCache, Mended
from tests.extract.repair.damage import contents, halve, mend

DAMAGES = [
    ("train/shard-00001.h5", [Mended("train", 6)]),
    ("val/cache.json", [Mended("val", 0)]),
    ("val/manifest.parquet", None),
    ("train/manifest.parquet", [Mended("train", 0)]),
    ("views/1/shard-00000.h5", [Mended("train, view 1", 6)]),
    ("head.safetensors", []),
]


@pytest.mark.parametrize(("name", "mended"), DAMAGES)
@pytest.mark.parametrize("missing", [False, True])
def test_one_damaged_file_is_written_again_and_no_other(
    cache: Path, name: str, mended: list[Mended] | None, missing: bool
) -> None:
    before = contents(cache)
    (cache / name).unlink() if missing else halve(cache / name)
    if mended is None:  # a copy of the manifest of train is in its views, of val there is none
        with pytest.raises(ClinitError, match="nothing else says which images it named") as caught:
            mend(cache)
        assert "`clinit extract`" in caught.value.remedy
        return
    assert mend(cache) == mended
    after = contents(cache)
    assert after.keys() == before.keys()
    summary = Path(name).parent / "cache.json"
    for path, (_, content) in before.items():
        if path != summary:
            assert after[path][1] == content
    others = [path for path in before if path.parent != Path(name).parent]
    others = [path for path in others if path != Path("head.safetensors")]
    if name.startswith("train"):
        assert [after[path] for path in others] == [before[path] for path in others]
    shards = [path for path in before if path.suffix == ".h5" and path != Path(name)]
    assert [after[path] for path in shards] == [before[path] for path in shards]


def test_all_damages_at_once_are_mended(cache: Path) -> None:
    before = contents(cache)
    names = ["train/shard-00000.h5", "train/cache.json", "val/shard-00000.h5"]
    names += ["views/0/shard-00002.h5", "head.safetensors"]
    halve(*(cache / name for name in names))
    unknown = "its cache.json was damaged too: nothing says whether the bits are those of before"
    assert mend(cache) == [
        Mended("train", 6, (unknown,)),
        Mended("train, view 0", 3),
        Mended("val", 6),
    ]
    after = contents(cache)
    assert all(after[Path(n)][1] == before[Path(n)][1] for n in names if "json" not in n)
    assert DamagedCache.of(cache).problems == ()


def test_a_damaged_plan_cannot_be_mended_and_the_rest_is_left_alone(cache: Path) -> None:
    halve(cache / "val" / "plan.json")
    before = contents(cache)
    with pytest.raises(ClinitError, match=r"val/plan\.json is damaged"):
        mend(cache)
    assert contents(cache) == before


def test_moved_images_and_weights_are_asked_for(
    cache: Path, whole: Path, tiny_weights: Path, tmp_path: Path, edit_document: Callable[..., None]
) -> None:
    halve(cache / "train" / "shard-00001.h5")
    for split in ("train", "val"):
        run = {"root": "/gone", "weights": "/gone.pth"}
        edit_document(cache / split / "cache.json", run=run)
    with pytest.raises(ClinitError, match=r"images of .* were in /gone, where nothing") as caught:
        mend(cache)
    assert caught.value.remedy == "Say where they are with `--root DIR`."
    root = whole.parent / "images"
    with pytest.raises(ClinitError, match=r"were at /gone\.pth, where nothing is now") as caught:
        mend(cache, root=root)
    assert caught.value.remedy == "Say where they are with `--weights FILE`."
    assert mend(cache, root=root, weights=tiny_weights) == [Mended("train", 6)]


def test_another_version_of_a_library_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halve(cache / "train" / "shard-00001.h5")
    monkeypatch.setattr("timm.__version__", "9.9")
    with pytest.raises(ClinitError, match=r"with timm = .*, here it is 9\.9: they would be") as e:
        mend(cache)
    assert "Install that version" in e.value.remedy


def test_what_is_whole_is_not_touched(cache: Path) -> None:
    before = contents(cache)
    assert mend(cache) == []
    done = CliRunner().invoke(app, ["cache", "repair", str(cache)])
    assert done.stdout == "Everything is as it was written: nothing to repair.\n"
    assert contents(cache) == before


def test_the_command_lists_what_is_wrong_and_what_is_mended(cache: Path) -> None:
    halve(cache / "train" / "shard-00001.h5")
    done = CliRunner().invoke(app, ["cache", "repair", str(cache), "--workers", "1"])
    assert done.exit_code == 0, done.exception
    lines = done.stdout.splitlines()
    assert "shard-00001.h5" in lines[0]
    assert lines[1:] == ["train: mended, 6 rows computed", "Everything is as it was written."]


def test_damaged_views_without_their_split_are_told_and_nothing_is_written(cache: Path) -> None:
    halve(cache / "views" / "0" / "shard-00000.h5")
    shutil.rmtree(cache / "train")
    before = contents(cache)
    with pytest.raises(ClinitError, match=r"views/0/shard-00000\.h5"):
        mend(cache)
    assert contents(cache) == before


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 40)
    features = rng.normal(size=(40, 4)).astype(np.float16)
    np.savez(tmp_path / "a.npz", x=features, y=labels)
    (tmp_path / "names.txt").write_text("c\nb\na\n")
    write_head(Head(np.eye(3, 4), np.zeros(3)), tmp_path / "h.safetensors")
    config = ImportConfig(
        backbone="clip",
        classes=tmp_path / "names.txt",
        head=tmp_path / "h.safetensors",
        features_name="x",
        labels_name="y",
    )
    import_features(tmp_path / "a.npz", None, tmp_path / "imported", config)
    return tmp_path / "imported"


@pytest.mark.parametrize(
    "name", ["train/shard-00000.h5", "train/manifest.parquet", "head.safetensors"]
)
def test_imported_features_are_imported_again(imported: Path, name: str) -> None:
    before = contents(imported)
    halve(imported / name)
    assert mend(imported) == [Mended("train", None)]
    assert contents(imported)[Path(name)][1] == before[Path(name)][1]


def test_files_that_have_changed_are_not_imported_again(imported: Path, tmp_path: Path) -> None:
    halve(imported / "train" / "shard-00000.h5")
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 4), np.float16), y=np.zeros(40, np.int64))
    with pytest.raises(ClinitError, match=r"a\.npz is not the file that was imported: SHA-256"):
        mend(imported)
    (tmp_path / "a.npz").unlink()
    with pytest.raises(ClinitError, match=r"a\.npz was imported, and nothing is there now"):
        mend(imported)
    halve(imported / "train" / "cache.json")
    with pytest.raises(ClinitError, match="says which files were imported") as caught:
        mend(imported)
    assert "`clinit cache import`" in caught.value.remedy


def test_a_merged_cache_is_merged_again(imported: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", features=np.ones((9, 4), np.float16), labels=np.arange(9))
    import_features(tmp_path / "b.npz", None, tmp_path / "b", ImportConfig(backbone="clip"))
    (split,) = merge((imported, tmp_path / "b"), tmp_path / "both")
    before = contents(tmp_path / "both")
    halve(split.path / "shard-00000.h5")
    assert mend(tmp_path / "both") == [Mended("train", None)]
    path = Path("train/shard-00000.h5")
    assert contents(tmp_path / "both")[path][1] == before[path][1]


def test_a_part_of_a_merged_import_that_is_gone_is_named(imported: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", features=np.ones((9, 4), np.float16), labels=np.arange(9))
    import_features(tmp_path / "b.npz", None, tmp_path / "b", ImportConfig(backbone="clip"))
    (split,) = merge((imported, tmp_path / "b"), tmp_path / "both")
    halve(split.path / "shard-00000.h5")
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(ClinitError, match=f"from 2 caches, and nothing is at {tmp_path}/b") as e:
        mend(tmp_path / "both")
    assert "`clinit cache merge" in e.value.remedy


def test_a_head_that_came_with_the_second_split_is_imported_again(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=np.eye(3, 4, dtype=np.float16), labels=np.arange(3))
    np.savez(tmp_path / "b.npz", features=np.ones((3, 4), np.float16), labels=np.arange(3))
    write_head(Head(np.eye(3, 4), np.zeros(3)), tmp_path / "h.safetensors")
    out = tmp_path / "imported"
    import_features(tmp_path / "a.npz", None, out, ImportConfig(backbone="clip"))
    config = ImportConfig(backbone="clip", split="val", head=tmp_path / "h.safetensors")
    import_features(tmp_path / "b.npz", None, out, config)
    before = contents(out)
    halve(out / "head.safetensors")
    assert mend(out) == [Mended("val", None)]
    assert contents(out)[Path("head.safetensors")][1] == before[Path("head.safetensors")][1]
    halve(out / "train" / "shard-00000.h5", out / "head.safetensors")
    assert mend(out) == [Mended("train", None)]
    assert contents(out)[Path("head.safetensors")][1] == before[Path("head.safetensors")][1]
