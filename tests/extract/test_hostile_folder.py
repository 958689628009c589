"""A cache from elsewhere, full of links: nothing outside of it is written, emptied or made."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from clinit.errors import ClinitError
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.cache.head import Head, store_head
from clinit.extract.dataset.manifest import write_manifest
from clinit.extract.dataset.scan import scan
from clinit.extract.work.run import extract
from clinit.files.lock import claim_file
from tests.extract.work.made import tiny_config

Write = Callable[[Path], object]

FILES = ("plan.json", "manifest.parquet", "cache.json", "shard-00000.h5")
LOCKED = (".lock", *FILES)
CLAIMS = (".part-1-of-1.lock", *(f".{name}.lock" for name in FILES))
AT_THE_ROOT = ("head.safetensors", ".head.safetensors.lock", "m.parquet", ".m.parquet.lock")


@pytest.fixture
def victims(tmp_path: Path) -> Path:
    """A folder with a file that somebody has written."""
    folder = tmp_path / "victims"
    folder.mkdir()
    (folder / "dear").write_text("dear")
    return folder


@pytest.fixture
def commands(
    make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path
) -> dict[str, Write]:
    """Everything that writes into a cache, as a function of its folder."""
    root = make_tree(train=1, val=1)
    config = tiny_config(tiny_weights, views=1)
    manifests = {split: scan("folder", root, split).manifest for split in ("train", "val")}
    np.save(tmp_path / "x.npy", np.eye(4, 6, dtype=np.float32)[np.arange(12) % 4])
    np.save(tmp_path / "y.npy", np.arange(12) % 4)
    head = Head(np.eye(4, 6, dtype=np.float32), np.zeros(4, np.float32))

    def build(out: Path) -> None:
        with claim_file(out / "m.parquet"):
            write_manifest(manifests["train"], out / "m.parquet")

    def import_(out: Path) -> None:
        config = ImportConfig(backbone="clip")
        import_features(tmp_path / "x.npy", tmp_path / "y.npy", out, config)

    return {
        "extract": lambda out: list(extract(manifests, root, out, config)),
        "import": import_,
        "manifest build": build,
        "store the head": lambda out: store_head(head, out / "head.safetensors"),
    }


def outside(victims: Path) -> dict[str, str]:
    return {
        str(path.relative_to(victims)): path.read_text() if path.is_file() else ""
        for path in victims.rglob("*")
    }


COMMANDS = ("extract", "import", "manifest build", "store the head")


@pytest.mark.parametrize("target", ["dear", "absent"])
@pytest.mark.parametrize(
    "command", [pytest.param("extract", marks=pytest.mark.slow), *COMMANDS[1:]]
)
def test_no_name_in_a_cache_leads_a_writer_out_of_it(
    commands: dict[str, Write], victims: Path, tmp_path: Path, command: str, target: str
) -> None:
    names = [
        *AT_THE_ROOT,
        *(f"{folder}/{name}" for folder in ("train", "val", "views/0") for name in LOCKED),
        *(f"train/{name}" for name in CLAIMS),
    ]
    before = outside(victims)
    for name in names:  # one at a time: the first refusal would hide the others
        cache = tmp_path / name.replace("/", "-")
        (cache / name).parent.mkdir(parents=True)
        (cache / name).symlink_to(victims / target)
        with suppress(ClinitError):
            commands[command](cache)
        assert outside(victims) == before, f"{command} went through {name}"
