"""Whatever becomes of a container: an error that is told, invalid rows, or what it now holds."""

import io
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from clinit.errors import ClinitError, ImageError
from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.dataset.scan import scan
from tests.extract.dataset.made import make_parquet, make_tar

TRIALS = 150


def pictures() -> list[bytes]:
    rng, found = np.random.default_rng(0), []
    for _ in range(6):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file, "png")
        found.append(file.getvalue())
    return found


IMAGES = pictures()


def shard(root: Path) -> Path:
    samples = enumerate(IMAGES)
    members = [m for i, image in samples for m in ((f"{i}.png", image), (f"{i}.cls", b"%d" % i))]
    return make_tar(root / "train.tar", members)


def table(root: Path) -> Path:
    names = [f"class {number}" for number in range(6)]
    return make_parquet(
        root / "train.parquet", IMAGES, range(6), names=names, row_group_size=3, compression="gzip"
    )


def damages(whole: bytes) -> Iterator[bytes]:
    """Yield copies with flipped bits, a block of zeros, or without their end."""
    rng = random.Random(0)
    for _ in range(TRIALS):
        content = bytearray(whole)
        place, sort = rng.randrange(len(whole)), rng.random()
        if sort < 0.1:
            del content[place:]
        elif sort < 0.3:
            size = min(rng.choice((16, 512)), len(whole) - place)
            content[place : place + size] = bytes(size)
        else:
            for _ in range(rng.choice((1, 1, 3))):
                content[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        yield bytes(content)


def rows(root: Path, manifest: Manifest) -> list[bytes | None] | ClinitError:
    """Return the images, None for an invalid row; or what stops the extraction."""
    images, found = images_of(manifest.table, root), list[bytes | None]()
    for row in range(len(manifest.table)):
        try:
            found.append(images.read(row))
        except ImageError:
            found.append(None)
        except ClinitError as error:
            return error
    return found


def try_scan(kind: str, root: Path) -> ClinitError | None:
    try:
        scan(kind, root, "train")
    except ClinitError as error:
        return error
    return None


def test_a_damaged_shard_gives_no_image_of_another_row(tmp_path: Path) -> None:
    path = shard(tmp_path)
    whole, manifest = path.read_bytes(), scan("webdataset", tmp_path, "train").manifest
    places = manifest.table.select("position", "size_bytes").rows()
    outcomes = set[str]()
    for number, content in enumerate(damages(whole)):
        path.write_bytes(content)
        os.utime(path, (number, number))  # another file: what was indexed is not that
        outcomes.add("scan told" if try_scan("webdataset", tmp_path) else "scanned")
        found = rows(tmp_path, manifest)
        if isinstance(found, ClinitError):
            assert len(content) != len(whole)
            outcomes.add("stopped")
            continue
        for image, (start, size) in zip(found, places, strict=True):
            assert image in (None, content[start : start + size])
        outcomes.add("invalid" if None in found else "read")
    assert outcomes == {"scan told", "scanned", "stopped", "invalid", "read"}


def test_a_damaged_table_of_images_never_ends_in_anything_but_an_error_that_is_told(
    tmp_path: Path,
) -> None:
    path = table(tmp_path)
    whole, manifest = path.read_bytes(), scan("huggingface", tmp_path, "train").manifest
    outcomes = set[str]()
    for content in damages(whole):
        path.write_bytes(content)
        outcomes.add("scan told" if try_scan("huggingface", tmp_path) else "scanned")
        found = rows(tmp_path, manifest)
        if isinstance(found, ClinitError):
            outcomes.add("stopped")
        else:
            outcomes.add("invalid" if None in found else "read")
    assert outcomes == {"scan told", "scanned", "stopped", "invalid", "read"}
