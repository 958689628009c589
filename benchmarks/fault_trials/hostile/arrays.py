"""Arrays of NumPy that are made to harm."""

from __future__ import annotations

import functools
import io
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fault_trials.hostile.scene import (
    Argv,
    Make,
    Scene,
    trial,
)
from fault_trials.trial import Trial


def arrays(seed: str) -> Iterator[Trial]:
    """Yield .npy files that are made to harm."""
    for name, (path, content) in _ARRAYS.items():
        yield trial("arrays", f"{path}, {name}", _array(path, content), seed=seed)


def _array(path: str, content: Callable[[Scene], bytes]) -> Make:
    def make(scene: Scene) -> Argv:
        scene.own(f"arrays/{path}").write_bytes(content(scene))
        return scene.writer("cache import")

    return make


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _npy_header(text: str, data: bytes = bytes(64)) -> bytes:
    header = text.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header + data


def _described(kind: str, shape: str, scene: Scene) -> bytes:
    return _npy_header(f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}}}")


def _evil_array(scene: Scene) -> bytes:
    pickled = pickle.loads  # noqa: F841 - what must not happen
    evil = scene.evil_pickle().read_bytes()
    return _npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", evil)


_LABELS, _FEATURES = "labels.npy", "features.npy"
_ROWS = 40
_SHAPES = ("(1152921504606846976,)", "(1099511627776, 12)", "(-1,)", "(40.5,)", "('a',)", "(0, 12)")
_MORE_SHAPES = (
    "()",
    "(40, 12, 1)",
    "(True, 12)",
    "None",
    "(2**62,)",
    "[40, 12]",
    "(40, 1000000000)",
)
_KINDS = ("<f4", "<f2", "<i8", "|O", "<c8", "<M8[s]", "<U1000000000", "|S0", "|V8", "nope", ">f4")
_ARRAYS: Mapping[str, tuple[str, Callable[[Scene], bytes]]] = {
    **{
        f"shape {shape} of {kind} {path[0]}": (
            path,
            functools.partial(_described, kind, shape),
        )
        for path in (_LABELS, _FEATURES)
        for shape in (*_SHAPES, *_MORE_SHAPES)
        for kind in ("<f4", "<i8")
    },
    **{
        f"type {kind} {path[0]}": (path, functools.partial(_described, kind, "(40, 12)"))
        for path in (_LABELS, _FEATURES)
        for kind in _KINDS
    },
    "pickle f": (_FEATURES, _evil_array),
    "pickle l": (_LABELS, _evil_array),
    "pickle alone": (_FEATURES, lambda scene: scene.evil_pickle().read_bytes()),
    "zip": (_FEATURES, lambda scene: b"PK\x03\x04" + bytes(100)),
    "header of brackets": (_FEATURES, lambda scene: _npy_header("(" * 9000)),
    "header of long brackets": (_LABELS, lambda scene: _npy_header("[" * 100_000)),
    "header that runs": (_FEATURES, lambda scene: _npy_header("__import__('os').getpid()")),
    "header of 4 GB": (_FEATURES, lambda scene: b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}"),
    "header not closed": (
        _LABELS,
        lambda scene: _npy_header("{'descr': '<i8', 'fortran_order': ("),
    ),
    "header with an escape": (_FEATURES, lambda scene: _npy_header("{'descr': '\x1b[2J'}")),
    "version 9": (_FEATURES, lambda scene: b"\x93NUMPY\x09\x00\x10\x00" + bytes(64)),
    "nothing": (_FEATURES, lambda scene: b""),
    "labels below zero": (_LABELS, lambda scene: _npy(np.full(_ROWS, -3))),
    "labels of 2^62": (_LABELS, lambda scene: _npy(np.full(_ROWS, 2**62))),
    "labels of 2^40": (_LABELS, lambda scene: _npy(np.full(_ROWS, 2**40))),
    "labels of float": (_LABELS, lambda scene: _npy(np.full(_ROWS, 0.5))),
    "labels of nan": (_LABELS, lambda scene: _npy(np.full(_ROWS, np.nan))),
    "labels of truth": (_LABELS, lambda scene: _npy(np.full(_ROWS, True))),
    "labels with nul": (_LABELS, lambda scene: _npy(np.array(["a\x00b"] * _ROWS))),
    "labels with escapes": (_LABELS, lambda scene: _npy(np.array(["\x1b[2J"] * _ROWS))),
    "labels of bytes": (_LABELS, lambda scene: _npy(np.array([b"\xff"] * _ROWS))),
    "labels of uint64": (_LABELS, lambda scene: _npy(np.full(_ROWS, 2**64 - 1, np.uint64))),
    "labels too few": (_LABELS, lambda scene: _npy(np.zeros(3, np.int64))),
    "features of nan": (_FEATURES, lambda scene: _npy(np.full((_ROWS, 12), np.nan, np.float32))),
    "features of 1e300": (_FEATURES, lambda scene: _npy(np.full((_ROWS, 12), 1e300))),
    "features of 1e-9 in half": (
        _FEATURES,
        lambda scene: _npy(np.full((_ROWS, 12), 1e-9, np.float16)),
    ),
    "features without a width": (_FEATURES, lambda scene: _npy(np.zeros((_ROWS, 0), np.float32))),
    "features in another order": (
        _FEATURES,
        lambda scene: _npy(np.asfortranarray(np.ones((_ROWS, 12), np.float32))),
    ),
    "classes of /dev": ("classes.txt", lambda scene: b"a\n" * 3),
    "classes not UTF-8": ("classes.txt", lambda scene: b"\xff\xfe\n\xff\nc\n"),
    "classes of a million": (
        "classes.txt",
        lambda scene: b"".join(b"%d\n" % i for i in range(10**6)),
    ),
    "a class of a MB": ("classes.txt", lambda scene: b"a" * 10**6 + b"\nb\nc\n"),
    "classes with nul": ("classes.txt", lambda scene: b"a\x00\nb\nc\n"),
}
