"""Reading images from folders, tar shards and Parquet files, side by side.

    python benchmarks/sources.py PHOTOGRAPHS --out benchmarks/

PHOTOGRAPHS holds class folders. They are copied in one shuffled order into tar shards and Parquet
files with row groups of 100 rows, and into one Parquet file with a single row group. In turns,
each is read alone by one thread, and read, decoded and resized to 224 pixels by two; medians of
the turns. All files are in the page cache: a disk would be slower, and hide the differences.
"""

from __future__ import annotations

import argparse
import datetime
import io
import os
import random
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import torch
from turns import processor

from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.dataset.scan import scan
from clinit.extract.loader import load_batches
from clinit.extract.transform import Transform

TRANSFORM = Transform(
    resize=256, crop=(224, 224), interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3
)
PER_FILE = 2500
SOURCES = {
    "folder": "folder",
    "tar": "webdataset",
    "Parquet, row groups of 100": "huggingface",
    "Parquet, one row group": "huggingface",
}


def copy(photographs: Path, root: Path, most: int) -> None:
    """Write the same images as each of the sources."""
    files = sorted(photographs.glob("*/*.jpg"))
    random.Random(0).shuffle(files)
    files = files[:most]
    for name in SOURCES:
        (root / name / "train").mkdir(parents=True)
    for file in files:
        folder = root / "folder" / "train" / file.parent.name
        folder.mkdir(exist_ok=True)
        shutil.copy(file, folder)
    for first in range(0, len(files), PER_FILE):
        part = files[first : first + PER_FILE]
        write_tar(root / "tar" / "train" / f"{first:06}.tar", part)
        path = root / "Parquet, row groups of 100" / "train" / f"{first:06}.parquet"
        table(part).write_parquet(path, row_group_size=100, compression="snappy")
    path = root / "Parquet, one row group" / "train" / "0.parquet"
    table(files).write_parquet(path, row_group_size=len(files), compression="snappy")


def write_tar(path: Path, files: list[Path]) -> None:
    """Write a shard."""
    with tarfile.open(path, "w") as tar:
        for number, file in enumerate(files):
            for extension, content in (("jpg", file.read_bytes()), ("cls", class_of(file))):
                member = tarfile.TarInfo(f"{number:06}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def table(files: list[Path]) -> pl.DataFrame:
    """Return images and labels as the Hugging Face library has them."""
    kind = pl.Struct({"bytes": pl.Binary, "path": pl.String})
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    labels = [class_of(file).decode() for file in files]
    return pl.DataFrame({"image": pl.Series(images, dtype=kind), "label": labels})


def class_of(file: Path) -> bytes:
    """Return the class of an image."""
    return file.parent.name.encode()


def read_alone(manifest: Manifest, root: Path) -> None:
    """Read all images."""
    images = images_of(manifest.table, root)
    for row in range(len(manifest.table)):
        images.read(row)


def read_and_decode(manifest: Manifest, root: Path) -> None:
    """Read all images as an extraction does."""
    rows = len(manifest.table)
    batches = [range(first, min(first + 64, rows)) for first in range(0, rows, 64)]
    for _ in load_batches(images_of(manifest.table, root), batches, TRANSFORM, workers=2):
        pass


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("build the manifest", "read", "read and decode")
    seconds: dict[str, list[list[float]]] = {name: [] for name in SOURCES}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy(options.photographs, root, options.images)
        built: dict[str, float] = {}
        manifests: dict[str, Manifest] = {}
        for name, kind in SOURCES.items():
            start = time.perf_counter()
            manifests[name] = scan(kind, root / name, "train").manifest
            built[name] = time.perf_counter() - start
        for _ in range(options.turns):
            for name, manifest in manifests.items():
                alone = seconds_of(lambda m=manifest, r=root / name: read_alone(m, r))
                decoded = seconds_of(lambda m=manifest, r=root / name: read_and_decode(m, r))
                seconds[name].append([built[name], alone, decoded])
        count = len(manifests["folder"].table)
    today = datetime.date.today().isoformat()
    lines = [
        f"# Reading images, {today}",
        "",
        f"{processor()}, {os.cpu_count()} cores; load average {load:.2f} before the first turn.",
        f"{count:,} images, medians of {options.turns} turns: images per second, and those of",
        "each source over those of folders.",
        "",
        f"| source | {' | '.join(f'{column} | / folder' for column in columns)} |",
        f"|---|{'---:|---:|' * len(columns)}",
    ]
    medians = {
        name: [statistics.median(each) for each in zip(*turns, strict=True)]
        for name, turns in seconds.items()
    }
    for name, found in medians.items():
        cells = (
            f"{count / mine:,.0f} | {of_folder / mine:.2f}"
            for mine, of_folder in zip(found, medians["folder"], strict=True)
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        machine = f"{os.cpu_count()}-core-{processor().lower().replace(' ', '-')}"
        (options.out / f"sources_{machine}_{today}.md").write_text(text)


if __name__ == "__main__":
    main()
