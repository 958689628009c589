"""HDF5 files with content elsewhere, in other types, or of other sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fault_trials.hostile.scene import (
    Argv,
    Make,
    Scene,
    sha256,
    trial,
)
from fault_trials.trial import Trial


def shards(seed: str) -> Iterator[Trial]:
    """Yield HDF5 files with content elsewhere, in other types, or of other sizes."""
    for name, change in _SHARDS.items():
        for path, reader in (
            ("caches/base/train/shard-00000.h5", "cache verify"),
            ("caches/base/train/shard-00000.h5", "train-head"),
            ("cache/train/shard-00000.h5", "diagnose, imported"),
        ):
            refused = name.startswith("!")
            yield trial(
                "HDF5",
                f"{name.lstrip('!')}, {path}, {reader}",
                _shard(path, reader, change),
                seed=seed,
                refused=refused,
            )


def _shard(path: str, reader: str, change: Callable[[Any, Scene], None]) -> Make:
    def make(scene: Scene) -> Argv:
        import h5py

        file = scene.own(path)
        with h5py.File(file, "r+") as opened:
            change(opened, scene)
        # The summary names this very file: only what is in it can be refused.
        summary = file.with_name("cache.json")
        document = json.loads(summary.read_text())
        for shard in document["shards"]:
            if shard["name"] == file.name:
                shard["sha256"] = sha256(file.read_bytes())
        summary.write_text(json.dumps(document))
        return scene.reader(reader)

    return make


def _replaced(
    name: str, make: Callable[[np.ndarray], dict[str, Any]]
) -> Callable[[Any, Scene], None]:
    def change(file: Any, scene: Scene) -> None:
        values = file[name][()]
        del file[name]
        file.create_dataset(name, **make(values))

    return change


def _elsewhere(file: Any, scene: Scene) -> None:
    import h5py

    other = scene.folder / "victims" / "other.h5"
    with h5py.File(other, "w") as opened:
        opened["features"] = file["features"][()]
    del file["features"]
    file["features"] = h5py.ExternalLink(str(other), "/features")


def _virtual(file: Any, scene: Scene) -> None:
    import h5py

    other = scene.folder / "victims" / "other.h5"
    values = file["features"][()]
    with h5py.File(other, "w") as opened:
        opened["features"] = values
    del file["features"]
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(str(other), "features", values.shape)
    file.create_virtual_dataset("features", layout)


def _external(file: Any, scene: Scene) -> None:
    values = file["features"][()]
    raw = scene.folder / "victims" / "raw"
    raw.write_bytes(values.tobytes())
    del file["features"]
    file.create_dataset(
        "features", values.shape, values.dtype, external=[(str(raw), 0, values.nbytes)]
    )


def _soft(file: Any, scene: Scene) -> None:
    import h5py

    file["elsewhere"] = file["features"][()]
    del file["features"]
    file["features"] = h5py.SoftLink("/elsewhere")


def _group(name: str) -> Callable[[Any, Scene], None]:
    def change(file: Any, scene: Scene) -> None:
        del file[name]
        file.create_group(name)

    return change


def _without(name: str) -> Callable[[Any, Scene], None]:
    def change(file: Any, scene: Scene) -> None:
        del file[name]

    return change


def _attribute(name: str, value: Any) -> Callable[[Any, Scene], None]:
    def change(file: Any, scene: Scene) -> None:
        file.attrs.pop(name, None)
        if value is not None:
            file.attrs[name] = value

    return change


def _vast(name: str) -> Callable[[Any, Scene], None]:
    """Declare 2^40 rows, of which none is stored."""
    return _replaced(
        name,
        lambda values: {
            "shape": (2**40, *values.shape[1:]),
            "dtype": values.dtype if values.dtype != object else "S8",
            "chunks": (1024, *values.shape[1:]),
        },
    )


def _bomb(name: str) -> Callable[[Any, Scene], None]:
    """Declare 2^27 rows of zeros, compressed to little."""
    return _replaced(
        name,
        lambda values: {
            "shape": (2**27, *values.shape[1:]),
            "dtype": values.dtype,
            "chunks": (2**16, *values.shape[1:]),
            "compression": "gzip",
        },
    )


_SHARDS: Mapping[str, Callable[[Any, Scene], None]] = {
    "!features elsewhere": _elsewhere,
    "!features virtual": _virtual,
    "!features in a raw file": _external,
    "a soft link": _soft,
    **{f"2^40 rows of {name}": _vast(name) for name in ("features", "labels", "valid")},
    "2^40 invalid rows": _vast("invalid_rows"),
    "2^27 rows of features, compressed": _bomb("features"),
    "2^27 labels, compressed": _bomb("labels"),
    **{f"!{name} is a group": _group(name) for name in ("features", "labels", "valid")},
    **{f"!no {name}": _without(name) for name in ("features", "labels", "invalid_reasons")},
    "!features of integers": _replaced("features", lambda v: {"data": v.astype(np.int32)}),
    "!features of complex": _replaced("features", lambda v: {"data": v.astype(np.complex64)}),
    "!features of text": _replaced("features", lambda v: {"data": v.astype("S8")}),
    "!features of another width": _replaced("features", lambda v: {"data": v[:, :-1]}),
    "!features of one axis": _replaced("features", lambda v: {"data": v.ravel()}),
    "!features of three axes": _replaced("features", lambda v: {"data": v[..., None]}),
    "!a row too many": _replaced("features", lambda v: {"data": np.vstack([v, v[:1]])}),
    "!labels of float": _replaced("labels", lambda v: {"data": v.astype(float)}),
    "!labels of -1": _replaced("labels", lambda v: {"data": v * 0 - 1}),
    "!labels of 2^62": _replaced("labels", lambda v: {"data": v * 0 + 2**62}),
    "!valid of integers": _replaced("valid", lambda v: {"data": v.astype(np.int64) * 7}),
    "!a scalar": _replaced("features", lambda v: {"data": 1.0}),
    "!empty": _replaced("features", lambda v: {"shape": None, "dtype": "f4"}),
    "!another plan": _attribute("plan", "0" * 64),
    "!no plan": _attribute("plan", None),
    "!plan of bytes": _attribute("plan", np.void(b"\x00\xff" * 50)),
    "!digest with an escape": _attribute("sha256", "\x1b]0;owned\x07"),
    "!digest of another": _attribute("sha256", "f" * 64),
}
