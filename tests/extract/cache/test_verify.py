"""`verify` finds the damaged parts of a cache, all of them at once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clinit.errors import ClinitError
from clinit.extract.cache.plan import WRITE_AGAIN
from clinit.extract.cache.verify import verify
from tests.cli.calls import call
from tests.conftest import Once, write_images
from tests.extract.work.made import extracted, tiny_config


@pytest.fixture(scope="module")
def mend(tiny_weights: Path, once: Once) -> Callable[[Path], Path]:
    """Extract both splits and two views into a cache, or compute what is damaged of it."""

    def images(root: Path) -> None:
        write_images(root, train=5, val=2)
        (root / "train" / "b" / "2.png").write_text("no pixels")

    root, config = once("verify-images", images), tiny_config(tiny_weights, views=2)

    def run(cache: Path) -> Path:
        extracted(root, cache, config)
        return cache

    return run


@pytest.fixture
def cache(mend: Callable[[Path], Path], once: Once, tmp_path: Path) -> Path:
    """A cache of one's own."""
    whole = once("verify-cache", lambda folder: mend(folder / "cache")) / "cache"
    return Path(shutil.copytree(whole, tmp_path / "cache"))


def problems(cache: Path) -> list[str]:
    return [str(problem) for _, problem in verify(cache)]


def test_a_whole_cache_is_read_in_all_its_parts(cache: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    assert not list(verify(cache, on_shard=lambda *shard: seen.append(shard)))
    assert seen[:4] == [("train", 1, 3), ("train", 2, 3), ("train", 3, 3), ("val", 1, 1)]
    assert seen[-1] == ("views/1", 3, 3)


FILES = [
    f"{folder}/{name}"
    for folder in ("train", "views/1")
    for name in ("plan.json", "cache.json", "manifest.parquet", "shard-00000.h5")
] + ["head.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_one_damaged_file_is_one_problem(cache: Path, name: str) -> None:
    whole = (cache / name).read_bytes()
    (cache / name).write_bytes(whole[: len(whole) // 2])
    (problem,) = problems(cache)
    assert name in problem


def test_the_first_problem_of_every_part_is_told_at_once(cache: Path) -> None:
    for name in ("train/shard-00000.h5", "train/shard-00002.h5", "views/0/shard-00001.h5"):
        path = cache / name
        path.write_bytes(path.read_bytes()[:-1])
    (cache / "val" / "manifest.parquet").unlink()
    head = cache / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\x01")
    places = ["train/shard-00000", "val/manifest", "views/0", "head.safe"]
    for place, problem in zip(places, problems(cache), strict=True):
        assert place in problem


def test_parts_that_do_not_belong_together_are_told(cache: Path) -> None:
    shutil.rmtree(cache / "views" / "1")
    shutil.copytree(cache / "views" / "0", cache / "views" / "1")
    (problem,) = problems(cache)
    assert "views/1 is not a view of the train split" in problem
    assert "view = 0, expected view = 1" in problem
    shutil.rmtree(cache / "train")
    assert [each.partition(" is a view of")[0] for each in problems(cache)] == [
        f"{cache}/views/{view}" for view in "01"
    ]


def test_the_command_prints_a_line_for_every_damaged_part(cache: Path) -> None:
    whole = call("cache", "verify", cache)
    assert whole.exit_code == 0
    assert whole.stdout.splitlines()[-1] == "Nothing has changed since the cache was written."
    (cache / "train" / "shard-00000.h5").unlink()
    head = cache / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\x01")
    damaged = call("cache", "verify", cache)
    assert isinstance(damaged.exception, ClinitError)
    assert str(damaged.exception) == f"2 problems in {cache}"
    assert damaged.exception.remedy.splitlines()[0] == WRITE_AGAIN
    assert [line for line in damaged.stdout.splitlines() if line.startswith("  ")] == [
        f"  {cache}/train/shard-00000.h5 is missing",
        f"  {cache}/head.safetensors has changed since it was written",
    ]
