"""JSON documents and safetensors files with wild values and wild headers."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fault_trials.hostile.scene import (
    Argv,
    Make,
    Scene,
    beside,
    header_of,
    joined,
    trial,
)
from fault_trials.trial import Trial

DEEP = 100_000
_WILD: Sequence[tuple[str, str]] = (
    *(("null", "null"), ("true", "true"), ("text", '"x"'), ("empty text", '""')),
    *(("list", "[]"), ("object", "{}"), ("list of null", "[null]"), ("minus one", "-1")),
    *(("zero", "0"), ("half", "0.5"), ("huge", "1e308"), ("larger than a float", "1e999")),
    *(("2^31", "2147483648"), ("2^63", "9223372036854775808"), ("nan", "NaN")),
    *(("infinity", "-Infinity"), ("10^5000", "1" + "0" * 5000), ("10^15", "1" + "0" * 15)),
    *(("deep list", "[" * DEEP + "]" * DEEP), ("deep object", '{"a":' * 5000 + "1" + "}" * 5000)),
    *(("nul", '"a\\u0000b"'), ("surrogate", '"\\ud800"'), ("escape", '"\\u001b]0;owned\\u0007"')),
    *(("long text", '"' + "x" * 1_000_000 + '"'), ("step up", '"../../../etc/passwd"')),
    *(("absolute", '"/etc/passwd"'), ("long list", "[" + "0," * 200_000 + "0]")),
    *(("nested", '[[1, "a"], {"b": [null]}]'), ("brackets", '"[bold]{x}%s $x$"')),
)
"""Values of JSON, as text: some cannot be written by Python's encoder."""
_WHOLE: Sequence[tuple[str, bytes]] = (
    *(("a list", b"[]"), ("a number", b"3"), ("null", b"null"), ("a text", b'"x"')),
    *(
        ("nothing", b""),
        ("blanks", b"  \n"),
        ("not UTF-8", b"\xff\xfe\x00{}"),
        ("zeros", bytes(64)),
    ),
    *(("a byte order mark", b"\xef\xbb\xbf{}"), ("an empty object", b"{}")),
    *(("deep", b"[" * DEEP), ("deep objects", b'{"a":' * DEEP)),
    *(("a long number", b"9" * 100_000), ("an escape", b"\x1b[2J")),
)
_MARK = "@@HERE@@"
_DOCUMENTS: Sequence[tuple[str, Sequence[str]]] = (
    ("caches/base/train/plan.json", ("cache show", "train-head", "export", "diagnose")),
    ("caches/base/train/cache.json", ("cache show", "train-head", "cache verify", "export")),
    ("runs/random/run.json", ("report --format json", "report", "export")),
    ("top/random/run.json", ("export, top", "train-top, its records")),
    ("sweep/sweep.json", ("sweep",)),
    ("sweep/random-lr=0.001-seed=0/run.json", ("sweep",)),
)
_METADATA: Sequence[tuple[str, Sequence[str]]] = (
    ("model.safetensors", ("predict",)),
    ("caches/base/head.safetensors", ("cache show", "train-head", "diagnose")),
    ("aligned.safetensors", ("train-head --head",)),
    ("kept/random.checkpoint", ("train-top, its checkpoint",)),
    ("weights.safetensors", ("extract --manifest", "export --weights")),
)


def _with_value(document: Any, rng: random.Random, text: str) -> str:
    """Return a document as JSON, with `text` in the place of one of its values."""
    document = copy.deepcopy(document)
    places = list(_holders(document))
    holder, key = rng.choice(places)
    holder[key] = _MARK
    return json.dumps(document).replace(f'"{_MARK}"', text)


def _holders(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(each, dict | list) and each:
            yield from _holders(each)


def documents(seed: str) -> Iterator[Trial]:
    """Yield documents with wild values, without end."""
    number = 0
    while True:
        for path, readers in _DOCUMENTS:
            name, text = _WILD[number % len(_WILD)]
            reader = readers[number // len(_WILD) % len(readers)]
            yield trial(
                "JSON",
                f"{path}, {name}, {reader}, {number}",
                _document(path, text, reader),
                seed=seed,
            )
        if number < len(_WHOLE):
            name, content = _WHOLE[number]
            for path, readers in _DOCUMENTS:
                make = _content(path, content, readers[0])
                yield trial("JSON", f"{path} is {name}, {readers[0]}", make, seed=seed)
        number += 1


def _document(path: str, text: str, reader: str) -> Make:
    def make(scene: Scene) -> Argv:
        file = scene.own(path)
        file.write_text(_with_value(json.loads(file.read_text()), scene.rng, text))
        beside(scene, path)
        return scene.reader(reader)

    return make


def _content(path: str, content: bytes, reader: str) -> Make:
    def make(scene: Scene) -> Argv:
        scene.own(path).write_bytes(content)
        beside(scene, path)
        return scene.reader(reader)

    return make


def metadata(seed: str) -> Iterator[Trial]:
    """Yield safetensors files with wild values in their metadata, and with wild headers."""
    number = 0
    while True:
        for path, readers in _METADATA:
            name, text = _WILD[number % len(_WILD)]
            reader = readers[number // len(_WILD) % len(readers)]
            yield trial(
                "safetensors",
                f"{path}, {name}, {reader}, {number}",
                _told(path, text, reader),
                seed=seed,
            )
        if number < len(_HEADERS):
            name, change = list(_HEADERS.items())[number]
            for path, readers in _METADATA:
                make = _changed(path, change, readers[0])
                yield trial("safetensors", f"{path}, {name}, {readers[0]}", make, seed=seed)
        number += 1


def _told(path: str, text: str, reader: str) -> Make:
    def make(scene: Scene) -> Argv:
        file = scene.own(path)
        header, rest = header_of(file.read_bytes())
        told = header.get("__metadata__", {})
        name = scene.rng.choice(sorted(told))
        document = json.loads(told[name])
        told[name] = _with_value({"all": document}, scene.rng, text)
        if told[name].startswith('{"all": '):
            told[name] = told[name][8:-1]
        file.write_bytes(joined(json.dumps(header), rest))
        beside(scene, path)
        return scene.reader(reader)

    return make


def _changed(path: str, change: Callable[[dict[str, Any], bytes], bytes], reader: str) -> Make:
    def make(scene: Scene) -> Argv:
        file = scene.own(path)
        file.write_bytes(change(*header_of(file.read_bytes())))
        beside(scene, path)
        return scene.reader(reader)

    return make


def _tensor(change: Mapping[str, Any]) -> Callable[[dict[str, Any], bytes], bytes]:
    """Change what a header says about its first tensor."""

    def changed(header: dict[str, Any], rest: bytes) -> bytes:
        name = next(name for name in header if name != "__metadata__")
        header[name] = {**header[name], **change}
        return joined(json.dumps(header), rest)

    return changed


def _all_as(dtype: str, size: int) -> Callable[[dict[str, Any], bytes], bytes]:
    """Say that all float32 tensors are of another type, with as many values."""

    def changed(header: dict[str, Any], rest: bytes) -> bytes:
        told, data = {}, b""
        for name, facts in header.items():
            if name == "__metadata__":
                told[name] = facts
                continue
            start, stop = facts["data_offsets"]
            part, kind = rest[start:stop], facts["dtype"]
            if kind == "F32":
                part, kind = part[: len(part) * size // 4], dtype
            told[name] = {
                **facts,
                "dtype": kind,
                "data_offsets": [len(data), len(data) + len(part)],
            }
            data += part
        return joined(json.dumps(told), data)

    return changed


_HEADERS: Mapping[str, Callable[[dict[str, Any], bytes], bytes]] = {
    "header of 2^63 bytes": lambda h, rest: struct.pack("<Q", 2**63) + rest,
    "header of 2^40 bytes": lambda h, rest: struct.pack("<Q", 2**40) + rest,
    "header longer than the file": lambda h, rest: struct.pack("<Q", 10**6) + b"{}" + rest,
    "no header": lambda h, rest: struct.pack("<Q", 0) + rest,
    "header is a list": lambda h, rest: joined("[]", rest),
    "deep header": lambda h, rest: joined("[" * DEEP, rest),
    "no tensor": lambda h, rest: joined(json.dumps({"__metadata__": h["__metadata__"]}), b""),
    "no metadata": lambda h, rest: joined(
        json.dumps({name: facts for name, facts in h.items() if name != "__metadata__"}), rest
    ),
    "metadata that is no text": lambda h, rest: joined(
        json.dumps({**h, "__metadata__": {"a": 1}}), rest
    ),
    "a shape of 2^60": _tensor({"shape": [2**60]}),
    "a shape of nothing": _tensor({"shape": [0, 12], "data_offsets": [0, 0]}),
    "a scalar": _tensor({"shape": []}),
    "a negative shape": _tensor({"shape": [-1, 12]}),
    "offsets backwards": _tensor({"data_offsets": [8, 0]}),
    "offsets of 2^62": _tensor({"data_offsets": [0, 2**62]}),
    "an unknown type": _tensor({"dtype": "F7"}),
    "bfloat16": _all_as("BF16", 2),
    "float16": _all_as("F16", 2),
    "float8": _all_as("F8_E4M3", 1),
    "bytes": _all_as("U8", 1),
    "boolean": _all_as("BOOL", 1),
    "a name with an escape": lambda h, rest: joined(
        json.dumps(h).replace('"weight"', '"\\u001b[2Jweight"'), rest
    ),
    "not finite": lambda h, rest: joined(json.dumps(h), b"\xff" * len(rest)),
}
