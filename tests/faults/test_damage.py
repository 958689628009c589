"""Every file that a command reads is changed in every way, one at a time.

A command that reads a damaged file says so in one sentence, or gives what it gives with the whole
file, to the bit.
"""

import io
import json
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from same_bits import Results, litter, results, without_times

from tests.conftest import Once
from tests.faults.process import Done, run
from tests.faults.workload import READERS, Scene

CACHE = ("cache verify", "cache show", "train-head", "diagnose")
MODEL = ("predict, folder", "model show", "add", "rename")
FILES: dict[str, tuple[tuple[str, ...], str]] = {
    "caches/base/train/plan.json": ((*CACHE, "export"), "caches/new/train/plan.json"),
    "caches/base/train/cache.json": ((*CACHE, "export"), "caches/new/train/cache.json"),
    "caches/base/val/cache.json": (CACHE, "caches/new/val/cache.json"),
    "caches/base/train/manifest.parquet": (CACHE, "caches/new/train/manifest.parquet"),
    "caches/base/train/shard-00000.h5": (CACHE, "caches/new/train/shard-00000.h5"),
    "caches/base/head.safetensors": ((*CACHE, "align"), "arrays/head.safetensors"),
    "caches/base/views/0/shard-00000.h5": (("align",), "caches/base/views/1/shard-00000.h5"),
    "runs/random/run.json": (
        ("report --json", "report", "export"),
        "runs/class-mean-calibrated/run.json",
    ),
    "runs/random/classes.parquet": (("report --json", "export"), "top/random/classes.parquet"),
    "runs/random/evaluations.parquet": (
        ("report --json", "export"),
        "runs/class-mean-calibrated/evaluations.parquet",
    ),
    "runs/random/points.parquet": (("report --json",), "runs/class-mean-calibrated/points.parquet"),
    "runs/random/head.safetensors": (("export",), "runs/class-mean-calibrated/head.safetensors"),
    "top/random/top.safetensors": (("export, top",), "weights.safetensors"),
    "top/trunk-cache/*-val-*/shard-00000.h5": (
        ("train-top --trunk-cache",),
        "caches/base/train/shard-00000.h5",
    ),
    "kept/random.checkpoint": (("train-top --trunk-cache",), "top/random/top.safetensors"),
    "aligned.safetensors": (("train-head --head",), "weights.safetensors"),
    "grown.safetensors": (("rename, head",), "aligned.safetensors"),
    "sweep/random-lr=0.001-seed=0/run.json": (("sweep",), "sweep/random-lr=0.001-seed=1/run.json"),
    "model.safetensors": (("predict",), "weights.safetensors"),
    "scenes/model.safetensors": (MODEL, "renamed/model.safetensors"),
    "scenes/config.json": (MODEL, "renamed/config.json"),
    "scenes/memory.safetensors": (MODEL, "renamed/memory.safetensors"),
    "train.parquet": (("manifest show", "extract --manifest"), "runs/random/classes.parquet"),
    "weights.safetensors": (("export --weights",), "model.safetensors"),
    "settings.toml": (("train-head --config",), "arrays/classes.txt"),
    "arrays/features.npy": (("cache import",), "arrays/labels.npy"),
    "arrays/head.safetensors": (("diagnose, imported",), "weights.safetensors"),
}
"""Who reads a file, and another of the same format, to be put in its place."""
INPUTS = ("settings.toml", "arrays/features.npy", "arrays/head.safetensors")
"""Files of the user: what they say may be other than it was."""
TIMES = ("images/s", "bound", "size", "Activations", "already recorded", "Wrote")
"""What lines of output hold that differ from run to run."""
ODD: tuple[Any, ...] = (
    *(None, True, "x", "", [], {}, -1, 0, 2**63, 1e308, [None], "../../x", float("nan")),
)

Damage = Callable[[bytes, random.Random, bytes], bytes | None]
"""Content, chance and the twin's content to other content; None: the file is removed."""


def flip(content: bytes, rng: random.Random, twin: bytes, *, wanted: str = ".") -> bytes:
    places = [found.start() for found in re.finditer(wanted.encode("latin-1"), content, re.DOTALL)]
    place = rng.choice(places or [0])
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def block(content: bytes, rng: random.Random, twin: bytes, *, times: int = 0) -> bytes:
    size = max(1, min(512, len(content) // 4))
    start = rng.randrange(max(1, len(content) - size))
    new = content[start : start + size] * times if times else bytes(size)
    return content[:start] + new + content[start + size :]


def change_json(document: Any, rng: random.Random) -> Any:
    """Return a document with one value replaced, changed a little, or gone."""
    document = json.loads(json.dumps(document))
    holder, key = rng.choice(list(places(document)))
    value = holder[key]
    near: Any = ODD
    if isinstance(value, bool | int | float):
        near = (value + 1, value - 1, 3 * value, -value)
    elif isinstance(value, str | list) and value:
        near = (value[:-1], value[::-1], value + value[-1:])
    sort = rng.choice((near, near, ODD, ()))
    if sort:
        holder[key] = rng.choice(sort)
    else:
        del holder[key]
    return document


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(each, dict | list):
            yield from places(each)


def change_metadata(content: bytes, rng: random.Random, twin: bytes) -> bytes:
    """Change a value of the documents in the metadata of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    texts = header.get("__metadata__", {})
    names = [name for name, text in texts.items() if text[:1] in ("{", "[")]
    for name in names[:1]:
        texts[name] = json.dumps(change_json(json.loads(texts[name]), rng))
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    return struct.pack("<Q", len(written)) + written + content[8 + length :] if names else content


def change_table(content: bytes, rng: random.Random, twin: bytes) -> bytes:
    """Change rows of a table, and write it as a whole file again."""
    table = pl.read_parquet(content)
    metadata, row = pl.read_parquet_metadata(io.BytesIO(content)), rng.randrange(len(table))
    number = rng.choice([name for name, kind in table.schema.items() if kind.is_numeric()])
    values = table[number].to_list()
    values[row] = rng.choice((-1, 7, (values[row] or 0) + 1))
    changed = rng.choice(
        (
            pl.concat([table[:row], table[row + 1 :]]),
            pl.concat([table, table[row : row + 1]]),
            table.reverse(),
            table.drop(rng.choice(table.columns)),
            table.with_columns(pl.Series(number, values, dtype=table.schema[number])),
        )
    )
    file = io.BytesIO()
    own = {key: text for key, text in metadata.items() if not key.startswith("ARROW")}
    changed.write_parquet(file, metadata=own or None)
    return file.getvalue()


DAMAGES: dict[str, Damage] = {
    "flipped bit": flip,
    "flipped digit": lambda *told: flip(*told, wanted="[0-9]"),
    "flipped letter": lambda *told: flip(*told, wanted="[a-z]"),
    "flipped number": lambda *told: flip(*told, wanted="[\x80-\xff]"),
    "cut in the middle": lambda content, rng, twin: content[: len(content) // 2],
    "cut by a byte": lambda content, rng, twin: content[:-1],
    "empty": lambda content, rng, twin: b"",
    "gone": lambda content, rng, twin: None,
    "zeros": block,
    "a block twice": lambda *told: block(*told, times=2),
    "more at the end": lambda content, rng, twin: content + content[-64:],
    "another file": lambda content, rng, twin: twin,
}
CHANGES: dict[str, Damage] = {
    ".json": lambda text, rng, twin: json.dumps(change_json(json.loads(text), rng)).encode(),
    ".safetensors": change_metadata,
    ".checkpoint": change_metadata,
    ".parquet": change_table,
}
"""The sort `a value`: what one changes who knows the format."""
QUICK = [
    ("caches/base/train/plan.json", "flipped letter", 0),
    ("caches/base/train/cache.json", "a value", 0),
    ("caches/base/train/manifest.parquet", "a value", 0),
    ("caches/base/train/shard-00000.h5", "flipped number", 0),
    ("caches/base/head.safetensors", "flipped number", 0),
    ("runs/random/run.json", "a value", 0),
    ("runs/random/evaluations.parquet", "a value", 1),
    ("runs/random/head.safetensors", "flipped number", 0),
    ("top/trunk-cache/*-val-*/shard-00000.h5", "flipped number", 0),
    ("kept/random.checkpoint", "a value", 0),
    ("model.safetensors", "a value", 0),
    ("scenes/memory.safetensors", "another file", 0),
    ("train.parquet", "cut in the middle", 0),
]
SLOW = [
    pytest.param(path, sort, number, marks=pytest.mark.slow)
    for number, path in enumerate(FILES)
    for sort in (
        *(list(DAMAGES)[(number + step) % len(DAMAGES)] for step in (0, 3, 6, 9)),
        *(["a value"] if Path(path).suffix in CHANGES else []),
    )
]
"""Four sorts for each file, others for its neighbours."""


def damaged(path: str, sort: str, number: int, work: Path) -> tuple[bytes, bytes | None]:
    """Return the content of a file, and that after a damage."""
    source, twin = (min(work.glob(each)) for each in (path, FILES[path][1]))
    damage, content = DAMAGES.get(sort) or CHANGES[Path(path).suffix], source.read_bytes()
    return content, damage(content, random.Random(f"{number} {path} {sort}"), twin.read_bytes())


def read(scene: Scene, reader: str, checkpoint: bytes | None) -> Done:
    if reader == "sweep":  # goes on with what is there
        scene.own("sweep/.lock")
    if reader == "train-top --trunk-cache":
        scene.own("top/trunk-cache/*/plan.json")
        (scene.out / "top").mkdir(parents=True)
        if checkpoint is not None:
            (scene.out / "top" / "random.checkpoint").write_bytes(checkpoint)
    return run(READERS[reader].split(), scene.folder)


def reading(done: Done, scene: Scene, reader: str) -> tuple[list[str], Results]:
    """Return what a command gives: lines without their times, and files."""
    text = done.out
    for place in scene.places:
        text = text.replace(str(place), "@")
    if text.lstrip()[:1] in ("[", "{"):
        lines = [json.dumps(without_times(json.loads(text, parse_constant=str)), sort_keys=True)]
    else:  # the last column of a report is seconds, and as wide as they are
        lines = [line for line in text.splitlines() if not any(word in line for word in TIMES)]
        lines = [re.sub(r"\d[\d.]*s\b", "", re.sub(r"[ ─━]+", " ", line)) for line in lines]
    written = scene.work / "sweep" if reader == "sweep" else scene.out
    return lines, results(written, *scene.places) if written.exists() else {}


@pytest.fixture
def whole(once: Once, another: Callable[[str], Scene]) -> Callable[[str], Any]:
    """Return what a command gives with whole files."""

    def given(reader: str) -> Any:
        def make(folder: Path) -> None:
            scene = another("whole")
            done = read(scene, reader, (scene.original / "kept" / "random.checkpoint").read_bytes())
            assert done.code == 0, done.err
            (folder / "given.json").write_text(json.dumps(reading(done, scene, reader)))
            shutil.rmtree(scene.folder)

        folder = once(f"given-{re.sub('[^a-z]+', '-', reader)}", make)
        return json.loads((folder / "given.json").read_text())

    return given


@pytest.mark.parametrize(("path", "sort", "number"), [*QUICK, *SLOW])
def test_a_damaged_file_is_refused_or_changes_nothing(
    another: Callable[[str], Scene],
    work: Path,
    whole: Callable[[str], Any],
    path: str,
    sort: str,
    number: int,
) -> None:
    before, content = damaged(path, sort, number, work)
    # Without a memory, a folder is whole.
    if content == before or (content is None and path == "scenes/memory.safetensors"):
        return
    for reader in FILES[path][0]:
        scene = another(reader)
        file = scene.own(path)
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        checkpoint = content if path.endswith(".checkpoint") else None
        done = read(scene, reader, checkpoint)
        assert done.problems() == [], reader
        if done.code != 0 or path in INPUTS:
            continue
        wanted, given = whole(reader), reading(done, scene, reader)
        own = path.partition("/")[2] if reader.startswith("sweep") else ""
        files = [{k: v for k, v in each.items() if k != own} for each in (given[1], wanted[1])]
        assert given[0] == wanted[0], reader
        assert files[0] == files[1], reader
        assert reader.startswith("sweep") or not scene.out.exists() or not litter(scene.out)
