"""Damage: every file that a command reads is changed in every way, one at a time.

A command that reads a damaged file says so in one sentence, or gives what it gives with the whole
file, to the bit. Bytes are chosen by class: the magic of a format, digits, letters, punctuation
and blanks of its texts, zeros, and all else, which is numbers.
"""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import string
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_trials.results import compare, litter, results, without_times
from fault_trials.server import Done, Job
from fault_trials.trial import Failure, Place, Trial, manners
from fault_trials.workload import COMMANDS, CONTAINERS, Command

TIMES = ("images/s", "bound", "size", "Activations", "there already", "recorded already", "Wrote")
"""What lines of output hold that differ from run to run."""
_HEAD = ("--tasks", "2", "--iterations", "4", "--eval-every", "2", "--batch-size", "8")
_SHORT = (*_HEAD, "--buffer", "10", "--device", "cpu", "--init", "least-square")
_TOP = COMMANDS["train-top"].words


def _words(*words: str) -> tuple[str, ...]:
    return words


def _extract(folder: str) -> tuple[str, ...]:
    """Return the command that extracts images in containers."""
    words = COMMANDS["extract --manifest"].words
    known = {"{work}/images/base": folder, "{work}/train.parquet": f"{folder}.parquet"}
    return tuple("{work}/" + known[word] if word in known else word for word in words)


def _build(kind: str, folder: str) -> tuple[str, ...]:
    """Return the command that lists them."""
    places = ("--root", "{work}/" + folder, "--out", "{out}/train.parquet")
    return _words("manifest", "build", kind, "--split", "train", *places)


READERS: Mapping[str, tuple[str, ...]] = {
    "cache verify": _words("cache", "verify", "{work}/caches/base"),
    "cache verify, imported": _words("cache", "verify", "{work}/cache"),
    "cache show": _words("cache", "show", "{work}/caches/base"),
    "diagnose": _words("diagnose", "{work}/caches/base", "--format", "json", "--device", "cpu"),
    "diagnose, imported": _words("diagnose", "{work}/cache", "--format", "json"),
    "align": (*COMMANDS["align"].words,),
    "train-head": (
        *("train-head", "--base", "{work}/caches/base", "--new", "{work}/caches/new"),
        *("--out", "{out}/runs", *_SHORT),
    ),
    "train-head --head": (
        *("train-head", "--base", "{work}/caches/base", "--new", "{work}/caches/new"),
        *("--head", "{work}/aligned.safetensors", "--loss", "mse", "--out", "{out}/runs"),
        *_SHORT,
    ),
    "train-head --config": (
        *("train-head", "--base", "{work}/caches/base", "--new", "{work}/caches/new"),
        *("--out", "{out}/runs", "--config", "{work}/settings.toml"),
    ),
    "train-top": (*_TOP,),
    "train-top, its trunk cache": (*_TOP, "--trunk-cache", "{work}/top/trunk-cache"),
    "train-top, its records": tuple(w.replace("{out}/top", "{work}/top") for w in _TOP),
    "train-top, its checkpoint": (*_TOP, "--trunk-cache", "{work}/top/trunk-cache"),
    "report --format json": _words("report", "{work}/runs", "--format", "json"),
    "report": _words("report", "{work}/runs", "--per-task", "--no-curves"),
    "report --format json, top": _words("report", "{work}/top", "--format", "json"),
    "export": (*COMMANDS["export"].words, "--base", "{work}/caches/base"),
    "export --weights": (
        *COMMANDS["export"].words,
        *("--base", "{work}/caches/base", "--weights", "{work}/weights.safetensors"),
    ),
    "export, top": (
        *("export", "{work}/top/random", "--out", "{out}/model.safetensors"),
        *("--base", "{work}/caches/base"),
    ),
    "predict": _words(
        *("predict", "{work}/model.safetensors", "{work}/odd/good.png", "--json"),
        *("--device", "cpu"),
    ),
    "predict, table": _words(
        *("predict", "{work}/model.safetensors", "{work}/odd/good.png", "--device", "cpu")
    ),
    "predict, folder": _words(
        *("predict", "{work}/scenes", "{work}/odd/good.png", "--json", "--device", "cpu"),
        *("--reject", "energy"),
    ),
    "model show": _words("model", "show", "{work}/scenes", "--json"),
    "add, folder": _words(
        *("add", "{work}/scenes", "{work}/images/new", "--replace", "--out", "{out}/grown"),
        *("--iterations", "2", "--device", "cpu", "--workers", "1"),
    ),
    "remember, folder": _words(
        *("remember", "{work}/scenes", "{work}/images/new", "--out", "{out}/remembers"),
        *("--device", "cpu", "--workers", "1"),
    ),
    "remove": _words("remove", "{work}/scenes", "b", "--out", "{out}/fewer"),
    "rename": _words("rename", "{work}/scenes", "b=z", "--out", "{out}/renamed"),
    "manifest show": _words("manifest", "show", "{work}/train.parquet"),
    "extract --manifest": COMMANDS["extract --manifest"].words,
    "sweep": tuple(w.replace("{out}/sweep", "{work}/sweep") for w in COMMANDS["sweep"].words),
    "sweep --search": tuple(
        w.replace("{out}/search", "{work}/search") for w in COMMANDS["sweep --search optuna"].words
    ),
    "cache import": (*COMMANDS["cache import"].words,),
    **{f"manifest build, {folder}": _build(kind, folder) for kind, folder in CONTAINERS.items()},
    **{f"extract, {folder}": _extract(folder) for folder in CONTAINERS.values()},
}
"""Commands that read what is damaged, by a name of their own."""
WRITTEN = {"train-top, its records": "top", "sweep": "sweep", "sweep --search": "search"}
"""What a command goes on with, below `{work}`: its results are there."""
_CACHE = ("cache verify", "cache show", "train-head", "diagnose")
_MODEL = ("predict, folder", "model show", "add, folder", "remember, folder", "remove", "rename")
_KEPT = ("scenes",)
"""Folders below `{work}` that no command may write into."""


@dataclass(frozen=True, slots=True)
class File:
    """A file to damage."""

    path: str
    """Below the workload."""
    readers: tuple[str, ...]
    twin: str
    """Another file of the same format, to be put in its place."""
    may_go: bool = False
    """Whether a folder without it is whole: it says less, and so do the commands."""
    is_input: bool = False
    """Written by the user, not by clinit: it may be other than it was, if it says what it says."""


FILES = (
    File("caches/base/train/plan.json", (*_CACHE, "export"), "caches/new/train/plan.json"),
    File("caches/base/train/cache.json", (*_CACHE, "export"), "caches/new/train/cache.json"),
    File("caches/base/val/cache.json", _CACHE, "caches/new/val/cache.json"),
    File("caches/base/val/plan.json", _CACHE, "caches/new/val/plan.json"),
    File("caches/base/train/manifest.parquet", _CACHE, "caches/new/train/manifest.parquet"),
    File("caches/base/train/shard-00000.h5", _CACHE, "caches/new/train/shard-00000.h5"),
    File("caches/base/val/shard-00001.h5", _CACHE[:3], "caches/new/val/shard-00001.h5"),
    File("caches/base/head.safetensors", (*_CACHE, "align"), "arrays/head.safetensors"),
    File("caches/new/train/shard-00001.h5", ("train-head",), "caches/base/train/shard-00001.h5"),
    File("caches/new/train/plan.json", ("train-head",), "caches/base/train/plan.json"),
    File("caches/base/views/0/shard-00000.h5", ("align",), "caches/base/views/1/shard-00000.h5"),
    File("caches/base/views/0/cache.json", ("align",), "caches/base/views/1/cache.json"),
    File("caches/base/views/1/plan.json", ("align",), "caches/base/views/0/plan.json"),
    File("cache/head.safetensors", ("cache verify, imported", "diagnose, imported"),
         "caches/base/head.safetensors"),
    File("cache/train/cache.json", ("cache verify, imported", "diagnose, imported"),
         "caches/base/train/cache.json"),
    File("runs/random/run.json", ("report --format json", "report", "export"),
         "runs/class-mean-calibrated/run.json"),
    File("runs/random/classes.parquet", ("report --format json", "export"),
         "top/random/classes.parquet"),
    File("runs/random/evaluations.parquet", ("report --format json", "export"),
         "runs/class-mean-calibrated/evaluations.parquet"),
    File("runs/random/points.parquet", ("report --format json",),
         "runs/class-mean-calibrated/points.parquet"),
    File("runs/random/steps.parquet", ("report --format json",),
         "runs/class-mean-calibrated/steps.parquet"),
    File("runs/random/head.safetensors", ("export",),
         "runs/class-mean-calibrated/head.safetensors"),
    File("top/random/top.safetensors", ("export, top",),
         "top/least-square-calibrated/top.safetensors"),
    File("top/random/head.safetensors", ("export, top",),
         "top/least-square-calibrated/head.safetensors"),
    File("top/random/run.json", ("train-top, its records", "report --format json, top"),
         "top/least-square-calibrated/run.json"),
    File("top/trunk-cache/*-train-*/plan.json", ("train-top, its trunk cache",),
         "caches/base/train/plan.json"),
    File("top/trunk-cache/*-train-*/cache.json", ("train-top, its trunk cache",),
         "caches/base/train/cache.json"),
    File("top/trunk-cache/*-val-*/shard-00000.h5", ("train-top, its trunk cache",),
         "caches/base/train/shard-00000.h5"),
    File("kept/random.checkpoint", ("train-top, its checkpoint",), "top/random/top.safetensors"),
    # Another head in its place would be another choice of the user, not damage.
    File("aligned.safetensors", ("train-head --head",), "weights.safetensors"),
    File("sweep/sweep.json", ("sweep",), "search/trials/sweep.json"),
    File("sweep/random-lr=0.001-seed=0/run.json", ("sweep",),
         "sweep/random-lr=0.001-seed=1/run.json"),
    File("sweep/random-lr=0.001-seed=0/evaluations.parquet", ("sweep",),
         "sweep/random-lr=0.001-seed=1/evaluations.parquet"),
    File("search/study.db", ("sweep --search",), "search/trials/sweep.json"),
    File("model.safetensors", ("predict",), "weights.safetensors"),
    File("scenes/model.safetensors", _MODEL, "renamed/model.safetensors"),
    File("scenes/config.json", _MODEL, "renamed/config.json"),
    File("scenes/memory.safetensors", _MODEL, "renamed/memory.safetensors", may_go=True),
    File("scenes/README.md", _MODEL[:2], "renamed/README.md"),
    File("train.parquet", ("manifest show", "extract --manifest"),
         "caches/new/train/manifest.parquet"),
    File("shards/train-0.tar", ("manifest build, shards", "extract, shards"),
         "shards/train-1.tar", is_input=True),
    File("tables/train-0.parquet", ("manifest build, tables", "extract, tables"),
         "tables/train-1.parquet", is_input=True),
    File("weights.safetensors", ("export --weights",), "model.safetensors"),
    File("settings.toml", ("train-head --config",), "arrays/classes.txt", is_input=True),
    File("arrays/features.npy", ("cache import",), "arrays/labels.npy", is_input=True),
    File("arrays/labels.npy", ("cache import",), "arrays/features.npy", is_input=True),
    File("arrays/classes.txt", ("cache import",), "settings.toml", is_input=True),
    File("arrays/head.safetensors", ("cache import",), "weights.safetensors", is_input=True),
)  # fmt: skip
Damage = Callable[[bytes, random.Random, bytes], bytes | None]
"""Content, chance and the twin's content to other content; None: the file is removed."""

_CLASSES: Mapping[str, Callable[[int], bool]] = {
    "digit": lambda byte: chr(byte) in string.digits,
    "letter": lambda byte: chr(byte) in string.ascii_letters,
    "punctuation": lambda byte: chr(byte) in string.punctuation,
    "blank": lambda byte: chr(byte) in " \n\t",
    "zero": lambda byte: byte == 0,
    "number": lambda byte: byte > 0 and chr(byte) not in string.printable,
}


def _flip(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def _flip_magic(content: bytes, rng: random.Random, twin: bytes) -> bytes:
    return _flip(content, rng.randrange(min(8, len(content))), rng.randrange(8))


def _flip_end(content: bytes, rng: random.Random, twin: bytes) -> bytes:
    return _flip(content, len(content) - 1 - rng.randrange(min(64, len(content))), rng.randrange(8))


def _flip_class(name: str) -> Damage:
    def damage(content: bytes, rng: random.Random, twin: bytes) -> bytes:
        places = [place for place, byte in enumerate(content) if _CLASSES[name](byte)]
        if not places:
            return content
        # The lowest bit of a text makes another text of it.
        text = name in ("digit", "letter")
        return _flip(content, rng.choice(places), 0 if text else rng.randrange(8))

    return damage


def _block(change: Callable[[bytes], bytes]) -> Damage:
    def damage(content: bytes, rng: random.Random, twin: bytes) -> bytes:
        size = max(1, min(512, len(content) // 4))
        start = rng.randrange(max(1, len(content) - size))
        return content[:start] + change(content[start : start + size]) + content[start + size :]

    return damage


BYTES: Mapping[str, Damage] = {
    "flipped bit of the magic": _flip_magic,
    "flipped bit near the end": _flip_end,
    **{f"flipped bit of a {name}": _flip_class(name) for name in _CLASSES},
    "cut in the middle": lambda content, rng, twin: content[: len(content) // 2],
    "cut by a byte": lambda content, rng, twin: content[:-1],
    "empty": lambda content, rng, twin: b"",
    "gone": lambda content, rng, twin: None,
    "a block of zeros": _block(lambda block: bytes(len(block))),
    "a block twice": _block(lambda block: block * 2),
    "a block less": _block(lambda block: b""),
    "more at the end": lambda content, rng, twin: content + content[-64:],
    "the file of another": lambda content, rng, twin: twin,
}
ODD: Sequence[Any] = (
    *(None, True, "x", "", [], {}, -1, 0, 3, 2**31, 2**63, 1e308, 0.5, [None], {"a": []}),
    *([[[[]]]], "\x1b[31m", "../../x", float("nan")),
)


def change_json(document: Any, rng: random.Random) -> Any:
    """Return a document with one value replaced, changed a little, or gone."""
    document = copy.deepcopy(document)
    places = list(_places(document))
    holder, key = rng.choice(places)
    value = holder[key]
    sort = rng.choice(("odd", "odd", "gone", "near", "near"))
    if sort == "gone":
        del holder[key]
    elif sort == "near" and isinstance(value, bool):
        holder[key] = not value
    elif sort == "near" and isinstance(value, int):
        holder[key] = rng.choice((value + 1, value - 1, 3 * value, -value))
    elif sort == "near" and isinstance(value, float):
        holder[key] = rng.choice((value * 1.5, -value, value + 1))
    elif sort == "near" and isinstance(value, str) and value:
        at = rng.randrange(len(value))
        holder[key] = value[:at] + rng.choice("abc0123") + value[at + 1 :]
    elif sort == "near" and isinstance(value, list) and value:
        holder[key] = rng.choice((value[:-1], value[::-1], value + value[-1:]))
    else:
        holder[key] = rng.choice(ODD)
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(items):
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


def _change_text(content: bytes, rng: random.Random, twin: bytes) -> bytes:
    return json.dumps(change_json(json.loads(content), rng), indent=2).encode()


def _change_metadata(content: bytes, rng: random.Random, twin: bytes) -> bytes:
    """Change a value of the JSON documents in the metadata of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    told = header.get("__metadata__", {})
    names = [name for name, text in told.items() if text[:1] in ("{", "[")]
    if not names:
        return content
    name = rng.choice(names)
    told[name] = json.dumps(change_json(json.loads(told[name]), rng))
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    return struct.pack("<Q", len(written)) + written + content[8 + length :]


def _change_table(content: bytes, rng: random.Random, twin: bytes) -> bytes:
    """Change rows of a table, and write it as a whole file again."""
    import io

    import polars as pl

    table = pl.read_parquet(content)
    told = pl.read_parquet_metadata(io.BytesIO(content))
    told = {key: text for key, text in told.items() if not key.startswith("ARROW")}
    sorts = ["row less", "row twice", "number", "number", "reverse", "column less"]
    sort = "correct" if "correct" in table.columns and rng.random() < 0.5 else rng.choice(sorts)
    row = rng.randrange(len(table))
    numbers = [name for name, kind in table.schema.items() if kind.is_numeric()]
    if sort == "row less":
        table = table.with_row_index("#").filter(pl.col("#") != row).drop("#")
    elif sort == "row twice":
        table = pl.concat([table, table[row : row + 1]])
    elif sort == "reverse":
        table = table.reverse()
    elif sort == "column less":
        table = table.drop(rng.choice(table.columns))
    elif sort == "correct":
        table = table.with_columns(correct=(3 * pl.col("total")).cast(table.schema["correct"]))
    else:
        name = rng.choice(numbers)
        values = table[name].to_list()
        values[row] = rng.choice((-1, 7, (values[row] or 0) + 1))
        table = table.with_columns(pl.Series(name, values, dtype=table.schema[name]))
    file = io.BytesIO()
    table.write_parquet(file, metadata=told or None)
    return file.getvalue()


CHANGES: Mapping[str, tuple[str, Damage, int]] = {
    ".json": ("a value of the document", _change_text, 8),
    ".safetensors": ("a value of the metadata", _change_metadata, 5),
    ".checkpoint": ("a value of the metadata", _change_metadata, 12),
    ".parquet": ("the table", _change_table, 6),
}
"""What is changed by one who knows the format, and how many times as often."""


def damages(*, count: int, seed: int) -> Iterator[Trial]:
    """Yield `count` trials, evenly over files and sorts of damage."""
    for index in range(count):
        file, number = FILES[index % len(FILES)], index // len(FILES)
        sorts = list(BYTES)
        if suffix := CHANGES.get(Path(file.path).suffix):
            sorts += [suffix[0]] * suffix[2]
        random.Random(f"{seed} {file.path}").shuffle(sorts)
        yield damage(file.path, sorts[number % len(sorts)], number, seed=seed)


def damage(path: str, sort: str, number: int, *, seed: int = 0) -> Trial:
    """Return the trial of one damage.

    Args:
        path: That of one of `FILES`.
        sort: One of `BYTES`, or the first of `CHANGES` for such a file.
        number: Another number is another place in the file.
        seed: Another seed is another place as well.
    """
    (file,) = (file for file in FILES if file.path == path)
    return Trial("damage", path, f"{sort}, number {number}", _run(file, sort, f"{seed} {number}"))


def damaged(file: File, sort: str, chance: str, place: Place) -> bytes | None:
    """Return the content of a file after a damage; None: it is gone."""
    source, twin = find(place.work, file.path), find(place.work, file.twin)
    change = BYTES[sort] if sort in BYTES else CHANGES[source.suffix][1]
    rng = random.Random(f"{chance} {file.path} {sort}")
    return change(source.read_bytes(), rng, twin.read_bytes())


def find(work: Path, path: str) -> Path:
    """Return the first file of a pattern."""
    return min(work.glob(path)) if "*" in path else work / path


def _run(file: File, sort: str, chance: str) -> Callable[[Place, Path], list[Failure]]:
    def run(place: Place, folder: Path) -> list[Failure]:
        content = damaged(file, sort, chance, place)
        source = find(place.work, file.path)
        if content == source.read_bytes() or (content is None and file.may_go):
            return []
        found = []
        for reader in file.readers:
            own = folder / "own"
            shutil.rmtree(own, ignore_errors=True)
            path = prepare(place, own, source.relative_to(place.work), reader)
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            if reader == "train-top, its checkpoint":
                _put_checkpoint(own, content)
            before = _kept(own)
            done = _read(place, own, reader)
            found += _verdict(place, done, own, reader, file)
            if _kept(own) != before:
                found.append(Failure("run or touched", f"{reader}: a file that is only read"))
        return found

    return run


def _kept(own: Path) -> dict[str, bytes]:
    """Return the content of what is only read."""
    folders = (own / "work" / name for name in _KEPT)
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


def prepare(place: Place, own: Path, path: Path, reader: str) -> Path:
    """Make a workload of links, with copies of the folder that `path` is in.

    Returns:
        The path of the copy.
    """
    copied = {path.parts[0], WRITTEN.get(reader, "")}
    if reader.startswith("train-top, its trunk"):
        copied.add("top")
    (own / "work").mkdir(parents=True)
    for entry in place.work.iterdir():
        target = own / "work" / entry.name
        if entry.name not in copied:
            target.symlink_to(entry)
        elif entry.is_dir():
            shutil.copytree(entry, target)
        else:
            shutil.copy(entry, target)
    return own / "work" / path


def _put_checkpoint(own: Path, content: bytes | None) -> None:
    out = own / "out" / "top"
    out.mkdir(parents=True)
    if content is not None:
        (out / "random.checkpoint").write_bytes(content)


def _read(place: Place, own: Path, reader: str) -> Done:
    # Names from where it runs: what is said is then the same in every folder.
    argv = Command(reader, READERS[reader], "").argv(Path("work"), Path("out"))
    return place.server.run(Job(argv=argv, out=own, name="read", more_memory=4 << 30, cpu_s=40))


@dataclass(frozen=True, slots=True)
class Reading:
    """What a command gives."""

    lines: tuple[str, ...]
    results: dict[str, str]


_WHOLE: dict[tuple[Path, str], Reading] = {}


def whole(place: Place, reader: str) -> Reading:
    """Return what a command gives with whole files."""
    key = (place.work, reader)
    if key not in _WHOLE:
        own = place.scratch / "whole" / "own"
        shutil.rmtree(own, ignore_errors=True)
        prepare(place, own, Path("settings.toml"), reader)
        if reader == "train-top, its checkpoint":
            _put_checkpoint(own, (place.work / "kept" / "random.checkpoint").read_bytes())
        done = _read(place, own, reader)
        if done.code != 0:
            raise RuntimeError(f"{reader} fails with whole files:\n{done.stderr}")
        _WHOLE[key] = _reading(place, done, own, reader)
    return _WHOLE[key]


def _reading(place: Place, done: Done, own: Path, reader: str) -> Reading:
    places = (own / "work", place.work, own)  # names of links may be followed
    text = done.stdout
    for each in places:
        text = text.replace(str(each), "@")
    if text.lstrip()[:1] in ("[", "{"):
        document = without_times(json.loads(text, parse_constant=str))
        lines = [json.dumps(document, sort_keys=True)]
    else:
        lines = [line for line in text.splitlines() if not any(t in line for t in TIMES)]
        # The last column of a report is seconds, and as wide as they are.
        lines = [re.sub(r"\d[\d.]*s\b", "", re.sub(r"[ ─━]+", " ", line)) for line in lines]
    written = own / "work" / WRITTEN[reader] if reader in WRITTEN else own / "out"
    return Reading(tuple(lines), results(written, *places) if written.exists() else {})


def _verdict(place: Place, done: Done, own: Path, reader: str, file: File) -> list[Failure]:
    found = [Failure(each.kind, f"{reader}: {each.what}") for each in manners(done)]
    if found or done.code != 0 or file.is_input:
        if "nan" in done.stdout.lower().split():
            found.append(Failure("silently changed", f"{reader}: says nan"))
        return found
    wanted, given = whole(place, reader), _reading(place, done, own, reader)
    if given.lines != wanted.lines:
        first = next(
            (
                ours
                for ours, theirs in zip(given.lines, wanted.lines, strict=False)
                if ours != theirs
            ),
            "fewer or more lines",
        )
        shown = _first_difference(first, wanted.lines[0]) if len(wanted.lines) == 1 else first
        found.append(Failure("silently changed", f"{reader}: says {shown.strip()[:160]}"))
    missing, other = compare(given.results, _without(file, reader, wanted.results))
    other = [name for name in other if name in _without(file, reader, given.results)]
    if missing:
        found.append(Failure("lost", f"{reader}: lacks {missing[0]}"))
    if other:
        found.append(Failure("silently changed", f"{reader}: other {other[0]}"))
    if reader not in WRITTEN and (own / "out").exists() and (left := litter(own / "out")):
        found.append(Failure("other", f"{reader}: draft left: {left[0]}"))
    return found


def _without(file: File, reader: str, content: Mapping[str, str]) -> dict[str, str]:
    """Leave out the damaged file itself, where a command goes on with the folder it is in."""
    top = WRITTEN.get(reader)
    return {k: v for k, v in content.items() if top is None or f"{top}/{k}" != file.path}


def _first_difference(ours: str, theirs: str) -> str:
    place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    return ours[max(0, place - 60) : place + 60]
