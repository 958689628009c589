"""Links, pipes, devices and folders where files are expected."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from fault_trials.hostile.scene import (
    Argv,
    Make,
    Scene,
    trial,
)
from fault_trials.trial import Trial

PID = 4242
_LINKED: Mapping[str, Sequence[str]] = {
    "cache import": (
        *("cache/train/.lock", "cache/.lock", "cache/train/plan.json", "cache/train/cache.json"),
        *("cache/train/manifest.parquet", "cache/head.safetensors", "cache/train/shard-00000.h5"),
        *(f"cache/train/.{name}.tmp-{PID}" for name in ("plan.json", "cache.json")),
        *(f"cache/train/.{name}.tmp-{PID}" for name in ("manifest.parquet", "shard-00000.h5")),
        f"cache/.head.safetensors.tmp-{PID}",
    ),
    "extract": (
        *("cache/train/.lock", "cache/val/.lock", "cache/train/plan.json", "cache/.lock"),
        *("cache/train/shard-00001.h5", f"cache/train/.shard-00001.h5.tmp-{PID}"),
        *("cache/head.safetensors", f"cache/.head.safetensors.tmp-{PID}"),
    ),
    "extract --views": ("cache/views/0/.lock", f"cache/views/0/.plan.json.tmp-{PID}"),
    "manifest build": ("train.parquet", f".train.parquet.tmp-{PID}"),
    "align": (
        *("aligned.safetensors", f".aligned.safetensors.tmp-{PID}", "aligned.alignment.json"),
        *(".aligned.safetensors.lock", ".aligned.safetensors.claim", ".lock"),
    ),
    "train-head": (
        *("runs", "runs/random", f"runs/.random.tmp-{PID}", "runs/.lock", "runs/.random.lock"),
        *("runs/.claim", "runs/random.claim"),
    ),
    "train-top": (
        *("top/.lock", "top/random.checkpoint", f"top/.random.checkpoint.tmp-{PID}"),
        *("top/random", f"top/.random.tmp-{PID}", "top/trunk-cache/.lock"),
    ),
    "sweep": (
        *("sweep/.lock", "sweep/sweep.json", f"sweep/.sweep.json.tmp-{PID}"),
        "sweep/random-lr=0.001-seed=0",
    ),
    "sweep --search optuna": (
        *("search/study.db", "search/study.db-journal", "search/trials/.lock"),
        *("search/chosen/.lock", "search/.lock"),
    ),
    "export": ("model.safetensors", f".model.safetensors.tmp-{PID}"),
    "export, folder": ("scenes", f".scenes.tmp-{PID}"),
    "add": (
        *("grown", f".grown.tmp-{PID}", ".grown.lock", ".grown.claim"),
        *("features", "features/train/.lock", f"features/train/.plan.json.tmp-{PID}"),
    ),
    "report --plot": ("curves.png", f".curves.png.tmp-{PID}"),
    "predict --csv": ("seen.csv", f".seen.csv.tmp-{PID}"),
}
_READ = (
    *(("caches/base/train/plan.json", "cache show"), ("runs/random/run.json", "report")),
    *(("caches/base/train/cache.json", "cache verify"), ("model.safetensors", "predict")),
    *(("caches/base/train/manifest.parquet", "cache show"), ("train.parquet", "manifest show")),
    *(
        ("caches/base/train/shard-00000.h5", "cache verify"),
        ("settings.toml", "train-head --config"),
    ),
    *(("caches/base/head.safetensors", "cache show"), ("aligned.safetensors", "train-head --head")),
    *(("runs/random/points.parquet", "report"), ("runs/random/head.safetensors", "export")),
    *(("arrays/features.npy", "cache import"), ("arrays/classes.txt", "cache import")),
    *(("weights.safetensors", "export --weights"), ("sweep/sweep.json", "sweep")),
    *(("search/study.db", "sweep --search"), ("odd/good.png", "predict")),
    *(("scenes/config.json", reader) for reader in ("predict, folder", "add, folder")),
    *(("scenes/model.safetensors", reader) for reader in ("model show", "rename")),
    *(("scenes/memory.safetensors", reader) for reader in ("add, folder", "remove", "model show")),
)
_ODD = (
    *("pipe", "folder", "link to /dev/zero", "link to itself", "link to a pipe"),
    *("link to nothing", "link to a text"),
)


def links(seed: str) -> Iterator[Trial]:
    """Yield folders with links to a foreign file, and pipes, devices and folders for files."""
    for command, paths in _LINKED.items():
        for path in paths:
            for kind in ("link", "dangling link", "hard link"):
                make = _link(command, path, kind)
                yield trial("links", f"{kind} at {path}, {command}", make, seed=seed)
    for path, reader in _READ:
        for kind in _ODD:
            yield trial("pipes", f"{kind} at {path}, {reader}", _odd(path, reader, kind), seed=seed)


def _link(command: str, path: str, kind: str) -> Make:
    def make(scene: Scene) -> Argv:
        place = scene.out / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "hard link":
            os.link(scene.victim, place)
        else:
            target = scene.victim if kind == "link" else scene.marker
            place.symlink_to(target)
        scene.shim = {"scope": str(scene.out), "pid": PID}
        return scene.writer(command)

    return make


def _odd(path: str, reader: str, kind: str) -> Make:
    def make(scene: Scene) -> Argv:
        file = scene.own(path)
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        elif kind == "link to itself":
            file.symlink_to(file)
        elif kind == "link to a pipe":
            os.mkfifo(scene.folder / "pipe")
            file.symlink_to(scene.folder / "pipe")
        elif kind == "link to nothing":
            file.symlink_to(scene.marker)
        elif kind == "link to a text":
            file.symlink_to(scene.victim)
        else:
            file.symlink_to("/dev/zero")
        return scene.reader(reader)

    return make
