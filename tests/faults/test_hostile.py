"""Files and words made to harm.

Nothing that a file says ends in a traceback, runs code, changes a file that the command was not
asked to write, takes more memory or time than its limit, or puts a control character on the
terminal. A sentence of refusal is right; so is an answer, if the input turns out to be harmless.
"""

import io
import json
import os
import pickle
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import polars as pl
import pytest

from tests.faults.process import Limits, run
from tests.faults.test_damage import places
from tests.faults.workload import READERS, WRITERS, Scene

Make = Callable[[Scene], Sequence[str]]
"""Prepares a scene; returns the words of the command."""
ESCAPE = "\x1b]0;owned\x07"
PLAN, SHARD = "caches/base/train/plan.json", "caches/base/train/shard-00000.h5"
RUN, HEAD = "runs/random/run.json", "caches/base/head.safetensors"
CLASSES = "runs/random/classes.parquet"


def victim(scene: Scene) -> Path:
    """Return a file that nobody may change."""
    return scene.folder / "victims" / "precious"


def marker(scene: Scene) -> Path:
    """Return a file that is made by code that must not run."""
    return scene.folder / "victims" / "marker"


def evil_pickle(scene: Scene) -> bytes:
    class Evil:
        def __reduce__(self_) -> tuple[Any, ...]:  # noqa: N805
            return (os.mkdir, (str(marker(scene)),))

    return pickle.dumps({"state_dict": Evil()})


def content(path: str, reader: str, make: Callable[[Scene], bytes]) -> Make:
    """Put other content into a file."""

    def prepare(scene: Scene) -> Sequence[str]:
        scene.own(path).write_bytes(make(scene))
        return READERS[reader].split()

    return prepare


def value(path: str, reader: str, text: str, keys: Sequence[Any] = ()) -> Make:
    """Put a JSON text in the place of a value of a document: the one at `keys`, or any."""

    def prepare(scene: Scene) -> Sequence[str]:
        file = scene.own(path)
        raw = file.read_bytes()
        start = 8 + struct.unpack("<Q", raw[:8])[0] if path.endswith("safetensors") else 0
        header = json.loads(raw[8:start]) if start else {}
        texts = header.get("__metadata__", {})
        name = next((each for each, told in texts.items() if told[:1] == "{"), "")
        document = json.loads(texts[name] if start else raw)
        holder, key = document, keys[-1] if keys else ""
        for each in keys[:-1]:
            holder = holder[each]
        if not keys:
            holder, key = random.Random(f"{path} {text}").choice(list(places(document)))
        holder[key] = "@@HERE@@"
        changed = json.dumps(document).replace('"@@HERE@@"', text)
        if start:
            texts[name] = changed
            written = json.dumps(header).encode()
            changed_raw = struct.pack("<Q", len(written)) + written + raw[start:]
        file.write_bytes(changed_raw if start else changed.encode())
        return READERS[reader].split()

    return prepare


def link(command: str, path: str, kind: str) -> Make:
    """Put a link to a foreign file where the command writes."""

    def prepare(scene: Scene) -> Sequence[str]:
        place = scene.out / path
        place.parent.mkdir(parents=True)
        if kind == "hard link":
            os.link(victim(scene), place)
        else:
            place.symlink_to(victim(scene) if kind == "link" else marker(scene))
        return WRITERS[command].split()

    return prepare


def odd(path: str, reader: str, kind: str) -> Make:
    """Put something that is no file where the command reads."""

    def prepare(scene: Scene) -> Sequence[str]:
        file = scene.own(path)
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        else:
            file.symlink_to({"itself": file, "nothing": marker(scene)}.get(kind, Path("/dev/zero")))
        return READERS[reader].split()

    return prepare


def shard(reader: str, change: Callable[[Any, Scene], None]) -> Make:
    """Change a shard, and what the summary says of it."""

    def prepare(scene: Scene) -> Sequence[str]:
        import hashlib

        file = scene.own(SHARD)
        with h5py.File(file, "r+") as opened:
            change(opened, scene)
        summary = file.with_name("cache.json")
        document = json.loads(summary.read_text())
        for each in document["shards"]:
            if each["name"] == file.name:
                each["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        summary.write_text(json.dumps(document))
        return READERS[reader].split()

    return prepare


def replaced(name: str, change: Callable[[Any], Any]) -> Callable[[Any, Scene], None]:
    """Replace the values of a dataset."""

    def replace(file: Any, scene: Scene) -> None:
        values = file[name][()]
        del file[name]
        file.create_dataset(name, data=change(values))

    return replace


def vast(file: Any, scene: Scene) -> None:
    del file["features"]
    file.create_dataset("features", (2**40, 12), "f2", chunks=(1024, 12), compression="gzip")


def elsewhere(file: Any, scene: Scene) -> None:
    other = victim(scene).with_name("other.h5")
    with h5py.File(other, "w") as opened:
        opened["features"] = file["features"][()]
    del file["features"]
    file["features"] = h5py.ExternalLink(str(other), "/features")


def table_bomb(scene: Scene) -> bytes:
    """Return a table of 64 million rows in some kilobytes."""
    table, file = pl.read_parquet(scene.own(CLASSES)).clear(2**24), io.BytesIO()
    bomb = pl.concat([table] * 4, rechunk=False)
    bomb.write_parquet(file, compression="zstd", row_group_size=2**24)
    return file.getvalue()


def words(text: str, *more: str) -> Make:
    return lambda scene: [*text.split(), *more]


def npy(header: str, data: bytes = bytes(64)) -> bytes:
    return (
        b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header) + 1) + header.encode() + b"\n" + data
    )


def png(width: int, height: int) -> bytes:
    """Return a PNG that says it has this size, and has no pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


WILD = {
    **{"null": "null", "list": "[]", "half": "0.5", "infinity": "1e999", "2^63": str(2**63)},
    **{"deep": "[" * 100_000 + "]" * 100_000, "10^5000": "1" + "0" * 5000, "nan": "NaN"},
    **{"surrogate": '"\\ud800"', "nul": '"a\\u0000b"', "long": '"' + "x" * 1_000_000 + '"'},
    **{"escape": json.dumps(ESCAPE), "path": '"../../../etc/passwd"'},
}
DOCUMENTS = {
    **{PLAN: "cache show", RUN: "report"},
    **{"model.safetensors": "predict", HEAD: "train-head"},
}
ARGUMENTS = {
    "a file": "{'checkpoint_path': 'work/weights.safetensors'}",
    "a download": "{'pretrained': True}",
    "10^9 classes": "{'num_classes': 1000000000}",
    "10^9 blocks": "{'depths': (1000000000, 1, 1, 1)}",
    "an expression": "__import__('os').mkdir('victims/marker')",
    "a power": "10**10**10",
}
ESCAPES = (
    *((PLAN, ["dataset"]), (PLAN, ["fingerprint", "backbone"]), (RUN, ["id"]), (RUN, ["notes"])),
    *(("model.safetensors", ["class_names"]), (HEAD, ["class_names"])),
)
WRITTEN = {
    "cache import": (
        *("cache/train/.lock", "cache/train/plan.json"),
        *("cache/train", "cache/train/manifest.parquet"),
    ),
    "extract": (
        *("cache/train/.lock", "cache/train/shard-00001.h5", "cache/train/.part-1-of-1.lock"),
        *("cache/val", "cache/train/cache.json", "cache/.plan.lock"),
    ),
    "extract --views": ("cache/views", "cache/views/0/plan.json"),
    "manifest build": ("train.parquet",),
    "train-head": ("runs", "runs/random", "runs/.lock"),
    "train-top": ("top/random.checkpoint", "top/trunk-cache/.lock"),
    "sweep": ("sweep/.lock",),
    "export": ("model.safetensors",),
    "predict --csv": ("seen.csv",),
}
ODD = {
    **{PLAN: "cache show", SHARD: "cache verify", RUN: "report", "train.parquet": "manifest show"},
    **{"settings.toml": "train-head --config"},
}
SHARDS: dict[str, Callable[[Any, Scene], None]] = {
    "elsewhere": elsewhere,
    "2^40 rows": vast,
    "of another width": replaced("features", lambda values: values[:, :-1]),
    "labels of 2^62": replaced("labels", lambda values: values * 0 + 2**62),
}
OBJECTS = "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"
BYTES: dict[tuple[str, str], dict[str, Callable[[Scene], bytes]]] = {
    ("arrays/features.npy", "cache import"): {
        "pickle": lambda scene: npy(OBJECTS, evil_pickle(scene)),
        "a header that runs": lambda scene: npy(f"__import__('os').mkdir({str(marker(scene))!r})"),
    },
    ("settings.toml", "train-head --config"): {
        "an order of /dev/zero": lambda scene: b'[train-head]\nclass-order = "/dev/zero"\n',
        "an escape": lambda scene: b'[train-head]\ninit = "\\u001b[2J"\n',
    },
    ("good.png", "predict"): {
        "wide": lambda scene: png(2**31 - 1, 1),
        "vast": lambda scene: png(60_000, 60_000),
    },
    (CLASSES, "export"): {"bomb": table_bomb},
}
OPTIONS = {
    "extract": (
        "--model-arg=checkpoint_path='/etc/passwd'",
        "--model-arg=depths=__import__('os').getcwd()",
        *("--input-size=1000000000", "--batch-size=1000000000000", "--out=/dev/null"),
    ),
    "train-head": (
        *("--out=/proc/x", "--out=" + "x" * 300, "--head=/dev/zero"),
        *("--buffer=1000000000000000000", "--out=work/caches/base/train/plan.json/x"),
    ),
    "train-top": ("--rank=1000000000",),
    "cache import": (f"--backbone={ESCAPE}",),
    "sweep": (
        *("seed=0:100000000000", "lr=1e-4..1e-1:log99999999", "seed=nan", "=1", "lr=nan..1:lin5"),
        *("buffer=99999999999999999999", "init=" + "r" * 1_000_000, f"loss={ESCAPE}"),
    ),
}


def cases() -> Iterator[tuple[str, Make]]:
    """Yield each case under its name."""
    for path, reader in DOCUMENTS.items():
        for name, text in WILD.items():
            yield f"{path}: {name}", value(path, reader, text)
        yield f"{path} is deep", content(path, reader, lambda scene: b"[" * 10**5)
    for name, text in ARGUMENTS.items():
        changed = value("model.safetensors", "predict", json.dumps(text), ["model_args"])
        yield f"model_args: {name}", changed
    for path, keys in ESCAPES:
        changed = value(path, DOCUMENTS[path], json.dumps(ESCAPE), keys)
        yield f"escape in {path}, {keys[-1]}", changed
    for (command, paths), kind in product(WRITTEN.items(), ("link", "dangling link", "hard link")):
        yield from ((f"{kind} at {path}, {command}", link(command, path, kind)) for path in paths)
    kinds = ("pipe", "folder", "itself", "nothing", "/dev/zero")
    for (path, reader), kind in product(ODD.items(), kinds):
        yield f"{kind} at {path}", odd(path, reader, kind)
    for (name, change), reader in product(SHARDS.items(), ("cache verify", "train-head")):
        yield f"HDF5: {name}, {reader}", shard(reader, change)
    for (path, reader), contents in BYTES.items():
        yield from (
            (f"{path}: {name}", content(path, reader, make)) for name, make in contents.items()
        )
    for command, options in OPTIONS.items():
        for option in options:
            yield f"{command} {option[:50]}", words(WRITERS[command], option)


CASES = dict(cases())
ALWAYS = ("model_args", "escape", "HDF5: elsew", CLASSES, "arrays/features.npy: pickle")
PARAMETERS = [
    pytest.param(
        name,
        marks=[] if number % 9 == 0 or name.startswith(ALWAYS) else pytest.mark.slow,
        id=ascii(name)[1:60],
    )
    for number, name in enumerate(CASES)
]


@pytest.mark.parametrize("name", PARAMETERS)
def test_hostile_input_is_refused_in_a_sentence_or_does_no_harm(scene: Scene, name: str) -> None:
    precious = victim(scene)
    precious.parent.mkdir()
    precious.write_bytes(b"what somebody has worked on for years\n")
    argv = CASES[name](scene)
    before = {path: path.read_bytes() for path in precious.parent.iterdir()}
    memory = 1 << 29 if "bomb" in name else 3 << 30
    done = run(argv, scene.folder, limits=Limits(cpu_s=20, memory=memory))
    assert done.problems() == []
    assert {path: path.read_bytes() for path in precious.parent.iterdir()} == before
    assert not re.search("allocate|[Oo]ut of memory|MemoryError", done.err)
    assert done.code or " nan " not in done.out
    assert done.code or not name.startswith("HDF5: elsewhere")
