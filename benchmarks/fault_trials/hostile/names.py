"""Names with control characters, wherever a name comes from."""

from __future__ import annotations

import json
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

_ESCAPES = (
    *("\x1b]0;owned\x07", "\x1b[2J\x1b[31mred", "\x9b31mred", "a\rb", "a\x08\x08b"),
    "\x7f\x00",
)


def names(seed: str) -> Iterator[Trial]:
    """Yield names with control characters, wherever a name comes from."""
    for escape in _ESCAPES:
        for source, make in _NAMED.items():
            yield trial("escapes", f"{escape!r} in {source}", make(escape), seed=seed)


def _named_document(path: str, keys: Sequence[Any], reader: str) -> Callable[[str], Make]:
    def with_escape(escape: str) -> Make:
        def make(scene: Scene) -> Argv:
            file = scene.own(path)
            document = holder = json.loads(file.read_text())
            for key in keys[:-1]:
                holder = holder[key]
            told = holder.get(keys[-1]) if isinstance(holder, dict) else holder[keys[-1]]
            holder[keys[-1]] = f"{told}{escape}" if not isinstance(told, list) else [escape]
            file.write_text(json.dumps(document))
            beside(scene, path)
            return scene.reader(reader)

        return make

    return with_escape


def _named_metadata(
    path: str, name: str, keys: Sequence[str], reader: str
) -> Callable[[str], Make]:
    def with_escape(escape: str) -> Make:
        def make(scene: Scene) -> Argv:
            file = scene.own(path)
            header, rest = header_of(file.read_bytes())
            document = json.loads(header["__metadata__"][name])
            holder = document
            for key in keys[:-1]:
                holder = holder[key]
            last = keys[-1] if keys else None
            if last is None:
                document = [f"{each}{escape}" for each in document]
            elif isinstance(holder[last], list):
                holder[last] = [f"{each}{escape}" for each in holder[last]]
            else:
                holder[last] = f"{holder[last]}{escape}"
            header["__metadata__"][name] = json.dumps(document)
            file.write_bytes(joined(json.dumps(header), rest))
            beside(scene, path)
            return scene.reader(reader)

        return make

    return with_escape


def _named_folder(command: str, *, file: bool) -> Callable[[str], Make]:
    def with_escape(escape: str) -> Make:
        def make(scene: Scene) -> Argv:
            name = escape.replace("\x00", "").replace("/", "")
            scene.own("images/base/train/a/0.png")
            for split in ("train", "val"):
                folder = scene.work / "images" / "base" / split
                if file:
                    (folder / "a" / "0.png").rename(folder / "a" / f"0{name}.png")
                    (folder / "b" / f"bad{name}.png").write_bytes(b"no image")
                else:
                    (folder / "a").rename(folder / f"a{name}")
            return scene.writer(command)

        return make

    return with_escape


def _named_path(words: Sequence[str]) -> Callable[[str], Make]:
    def with_escape(escape: str) -> Make:
        def make(scene: Scene) -> Argv:
            name = escape.replace("\x00", "")
            return [word.format(work=scene.work, out=scene.out, name=name) for word in words]

        return make

    return with_escape


def _named_classes(escape: str) -> Make:
    def make(scene: Scene) -> Argv:
        scene.own("arrays/classes.txt").write_text(f"a{escape}\nb\nc\n", encoding="utf-8")
        return scene.writer("cache import")

    return make


def _named_record(escape: str) -> Make:
    def make(scene: Scene) -> Argv:
        folder = scene.own("runs/random/run.json").parent
        folder.rename(folder.with_name(f"random{escape}".replace("\x00", "").replace("/", "")))
        return scene.reader("report")

    return make


def _named_setting(escape: str) -> Make:
    def make(scene: Scene) -> Argv:
        quoted = json.dumps(f"init{escape}")
        scene.own("settings.toml").write_text(f"[train-head]\n{quoted} = 1\n", encoding="utf-8")
        return scene.reader("train-head --config")

    return make


def _named_predicted(escape: str) -> Make:
    def make(scene: Scene) -> Argv:
        name = escape.replace("\x00", "").replace("/", "")
        folder = scene.folder / "see"
        folder.mkdir()
        for kind, content in (("good", scene.work / "odd" / "good.png"), ("bad", None)):
            data = content.read_bytes() if content else b"no image"
            (folder / f"{kind}{name}.png").write_bytes(data)
        return ["predict", str(scene.work / "model.safetensors"), str(folder), "--device", "cpu"]

    return make


_NAMED: Mapping[str, Callable[[str], Make]] = {
    "plan.json, data set": _named_document(
        "caches/base/train/plan.json", ["dataset"], "cache show"
    ),
    "plan.json, backbone": _named_document(
        "caches/base/train/plan.json", ["fingerprint", "backbone"], "cache show"
    ),
    "plan.json, device": _named_document("caches/base/train/plan.json", ["device"], "cache verify"),
    "cache.json, bound": _named_document(
        "caches/base/train/cache.json", ["run", "bound"], "cache show"
    ),
    "cache.json, shard": _named_document(
        "caches/base/train/cache.json", ["shards", 0, "name"], "cache verify"
    ),
    "run.json, id": _named_document("runs/random/run.json", ["id"], "report"),
    "run.json, init": _named_document("runs/random/run.json", ["config", "init"], "report"),
    "run.json, note": _named_document("runs/random/run.json", ["notes"], "report"),
    "run.json, format": _named_document("runs/random/run.json", ["format"], "report"),
    "run.json, backbone": _named_document(
        "runs/random/run.json", ["base", "fingerprint", "backbone"], "report"
    ),
    "run.json, place of the base": _named_document(
        "runs/random/run.json", ["base", "path"], "export"
    ),
    "sweep.json, format": _named_document("sweep/sweep.json", ["format"], "sweep"),
    "sweep.json, weights": _named_document(
        "sweep/sweep.json", ["base", "fingerprint", "weights"], "sweep"
    ),
    "model, classes": _named_metadata(
        "model.safetensors", "clinit_model", ["class_names"], "predict, table"
    ),
    "model, backbone": _named_metadata(
        "model.safetensors", "clinit_model", ["backbone"], "predict"
    ),
    "model, format": _named_metadata("model.safetensors", "clinit_model", ["format"], "predict"),
    "model, interpolation": _named_metadata(
        "model.safetensors", "clinit_model", ["transform", "interpolation"], "predict"
    ),
    "head, classes": _named_metadata(
        "caches/base/head.safetensors", "clinit_head", ["class_names"], "train-head"
    ),
    "weights, classes": _named_metadata(
        "weights.safetensors", "class_names", [], "extract --manifest"
    ),
    "class folders, manifest": _named_folder("manifest build", file=False),
    "class folders, extract": _named_folder("extract", file=False),
    "image files, manifest": _named_folder("manifest build", file=True),
    "image files, extract": _named_folder("extract", file=True),
    "classes.txt": _named_classes,
    "folder of a record": _named_record,
    "a setting": _named_setting,
    "images to predict": _named_predicted,
    "a cache that is not there": _named_path(["cache", "show", "{out}/{name}"]),
    "a record that is not there": _named_path(["report", "{out}/{name}"]),
    "a model that is not there": _named_path(["predict", "{out}/{name}", "{out}/{name}"]),
    "a grid": _named_path(
        [
            "sweep",
            "--base",
            "{work}/caches/base",
            "--new",
            "{work}/caches/new",
            "--out",
            "{out}/sweep",
            "{name}=1",
        ]
    ),
    "a value of a grid": _named_path(
        [
            "sweep",
            "--base",
            "{work}/caches/base",
            "--new",
            "{work}/caches/new",
            "--out",
            "{out}/sweep",
            "init={name}",
        ]
    ),
    "a backbone": _named_path(
        [
            "extract",
            "--dataset",
            "folder",
            "--root",
            "{work}/images/base",
            "--out",
            "{out}/cache",
            "--backbone",
            "x{name}",
        ]
    ),
    "a data set": _named_path(
        [
            "manifest",
            "build",
            "x{name}",
            "--root",
            "{work}/images/base",
            "--split",
            "train",
            "--out",
            "{out}/x.parquet",
        ]
    ),
    "a lambda": _named_path(
        [
            "train-head",
            "--base",
            "{work}/caches/base",
            "--new",
            "{work}/caches/new",
            "--out",
            "{out}/r",
            "--lambda",
            "{name}",
        ]
    ),
}
