"""`verify` names every damage to a cache, and all of them at once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.errors import ClinitError
from clinit.extract.cache.plan import WRITE_AGAIN
from clinit.extract.cache.verify import verify
from clinit.extract.dataset.scan import scan
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.work.run import ExtractConfig, extract


@pytest.fixture(scope="module")
def mend(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Extract both splits and two views into a cache, or compute what is damaged of it."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 5), ("val", 2)):
        for name in "abc":
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (36, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    (root / "train" / "b" / "2.png").write_text("no pixels")
    model_args = {"depths": (1, 1, 1, 1), "dims": (4, 8, 8, 12)}
    backbone = BackboneConfig(name="convnextv2_atto", weights=tiny_weights, model_args=model_args)
    config = ExtractConfig(backbone=backbone, input_size=32, batch_size=4, shard_rows=6, views=2)
    manifests = {split: scan("folder", root, split).manifest for split in ("train", "val")}

    def extracted(cache: Path) -> Path:
        list(extract(manifests, root, cache, config))
        return cache

    return extracted


@pytest.fixture(scope="module")
def whole(mend: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mend(tmp_path_factory.mktemp("whole") / "cache")


@pytest.fixture
def cache(whole: Path, tmp_path: Path) -> Path:
    """A cache of one's own."""
    return Path(shutil.copytree(whole, tmp_path / "cache"))


def told(cache: Path) -> tuple[list[str], list[str]]:
    """Return what has been read, and what is wrong."""
    parts = list(verify(cache))
    problems = [str(problem) for part in parts for problem in part.problems]
    return [part.told for part in parts if part.told], problems


def test_a_whole_cache_is_read_in_all_its_parts(cache: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    parts = list(verify(cache, on_shard=lambda *shard: seen.append(shard)))
    assert [part.told for part in parts if part.told] == [
        "train: 3 shards, 15 rows read",
        "val: 1 shard, 6 rows read",
        "train, view 0: 3 shards, 15 rows read",
        "train, view 1: 3 shards, 15 rows read",
        "head: 3 rows read",
    ]
    assert not any(part.problems for part in parts)
    assert seen[:4] == [("train", 1, 3), ("train", 2, 3), ("train", 3, 3), ("val", 1, 1)]
    assert len(seen) == 10


FILES = [
    f"{folder}/{name}"
    for folder in ("train", "val", "views/1")
    for name in ("plan.json", "cache.json", "manifest.parquet", "shard-00000.h5")
] + ["head.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_one_damaged_file_is_one_problem(cache: Path, name: str) -> None:
    whole = (cache / name).read_bytes()
    (cache / name).write_bytes(whole[: len(whole) // 2])
    (problem,) = told(cache)[1]
    assert name in problem


def test_everything_that_is_damaged_is_told_at_once(cache: Path) -> None:
    for name in ("train/shard-00000.h5", "train/shard-00002.h5", "views/0/shard-00001.h5"):
        path = cache / name
        path.write_bytes(path.read_bytes()[:-1])
    (cache / "val" / "manifest.parquet").unlink()
    head = cache / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\x01")
    shutil.copy(cache / "train" / "shard-00000.h5", cache / "val" / "shard-00000.h5")
    problems = told(cache)[1]
    places = [
        "train/shard-00000",
        "train/shard-00002",
        "val/manifest",
        "val/shard-00000",
        "views/0",
    ]
    assert len(problems) == 6
    for place, problem in zip([*places, "head.safe"], problems, strict=True):
        assert place in problem


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in FILES if not n.endswith("plan.json")])
def test_the_command_of_a_damaged_cache_mends_it(
    cache: Path, mend: Callable[[Path], Path], name: str
) -> None:
    path = cache / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    mend(cache)
    assert told(cache)[1] == []
    if path.name != "cache.json":  # it tells when that was
        assert path.read_bytes() == whole


def test_parts_that_do_not_belong_together_are_told(cache: Path) -> None:
    shutil.rmtree(cache / "views" / "1")
    shutil.copytree(cache / "views" / "0", cache / "views" / "1")
    (problem,) = told(cache)[1]
    assert "views/1 holds features with view = 0 where view = 1 is expected" in problem
    shutil.rmtree(cache / "train")
    assert told(cache)[1] == [
        f"{cache}/views/{view} is a view of training images that are not there" for view in "01"
    ]


def test_a_path_of_an_invalid_row_that_is_not_the_manifests_is_told(
    cache: Path, edit_document: Callable[..., None]
) -> None:
    reason = "not an image of a known format"
    invalid = [{"row": 7, "path": "train/b/3.png", "reason": reason}]
    edit_document(cache / "train" / "cache.json", invalid=invalid)
    (problem,) = told(cache)[1]
    assert problem.endswith("names train/b/3.png in row 7, the manifest train/b/2.png")


def test_the_command_prints_a_line_for_every_problem(cache: Path) -> None:
    whole = CliRunner().invoke(app, ["cache", "verify", str(cache)])
    assert whole.exit_code == 0
    assert whole.stdout.splitlines()[-2:] == [
        "head: 3 rows read",
        "Everything is as it was written.",
    ]
    (cache / "train" / "shard-00000.h5").unlink()
    head = cache / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\x01")
    damaged = CliRunner().invoke(app, ["cache", "verify", str(cache)])
    assert isinstance(damaged.exception, ClinitError)
    assert str(damaged.exception) == f"2 problems in {cache}"
    assert damaged.exception.remedy.splitlines() == [
        WRITE_AGAIN,
        "Run the command that wrote this head again, or give another one.",
    ]
    assert damaged.stdout.splitlines() == [
        "train: 3 shards, 15 rows read",
        f"  {cache}/train/shard-00000.h5 is missing",
        "val: 1 shard, 6 rows read",
        "train, view 0: 3 shards, 15 rows read",
        "train, view 1: 3 shards, 15 rows read",
        "head: not read",
        f"  {cache}/head.safetensors has changed since it was written",
    ]
