"""Read the tensors of a checkpoint, whichever program has saved it, and never run its code.

A checkpoint of PyTorch is a pickle, which may contain anything besides tensors: settings, NumPy
numbers, optimizers. PyTorch's restricted unpickler refuses such a file as a whole. Here it gets
*inert* objects in the place of all that it does not know, so that tensors next to them can be read.
A network that was pickled as an object becomes inert too; only its own code could read it, so the
user gets the line of Python that takes its weights out.

A checkpoint may declare more than it stores: tensors whose rows all repeat one number, or a
compressed archive. Such files are refused before any memory is allocated for them.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import timm.models
import torch
from safetensors import safe_open
from torch import Tensor

from clinit.errors import BackboneError, ClinitError, MachineError
from clinit.files.paths import check_readable, exists, instead_of
from clinit.machine import out_of_memory
from clinit.words import examples, size_text

_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model")
"""Keys of the weights, in timm's order."""
_TRUSTED = ", weights_only=False)"
_DEEPEST = 2
"""Levels of mappings in which the weights are searched."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightFile:
    """The tensors of a file, by name."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Texts next to the tensors of a safetensors file."""
    is_pickle: bool = False

    @property
    def some(self) -> str:
        """The number of tensors, and two names."""
        return f"{len(self.tensors):,} tensors such as {', '.join(islice(self.tensors, 2))}"


class _Inert:
    """Stands for an object that is no tensor; it is made from anything, and does nothing."""

    def __new__(cls, *arguments: object, **more: object) -> _Inert:
        return object.__new__(cls)

    def __setstate__(self, state: object) -> None:
        pass


def read_checkpoint(path: Path, source: Path | None = None) -> WeightFile:
    """Read the tensors of a safetensors file or of a checkpoint of PyTorch.

    Args:
        path: The file.
        source: Another path of the same file, such as of its open descriptor.

    Raises:
        BackboneError: If the file contains no weights, or only as an object of a program.
        StorageError: If it cannot be read.
        MachineError: If there is too little memory.
    """
    opened = source or path
    if not exists(opened):
        remedy = "Give a .safetensors or .pth file with `--weights`."
        raise BackboneError(f"no weights at {path}", remedy=instead_of(path, remedy, exists))
    check_readable(opened, BackboneError)
    with opened.open("rb") as file:
        begin = file.read(9)
    is_pickle = begin[8:] != b"{"
    try:
        if not is_pickle:
            with safe_open(opened, framework="pt") as stored:
                read = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
                return WeightFile(path, read, stored.metadata() or {})
        found = _unpickled(path, opened)
    except ClinitError:
        raise
    except Exception as error:  # unpickling and safetensors raise many types
        remedy = (
            "Give a safetensors file, or a .pth file with the weights: clinit never runs code in a"
            " checkpoint; a web page or a Git LFS pointer is not a checkpoint."
        )
        if begin[:2] == b"\x80\x02":
            remedy += f" If you trust the file, save it anew: {_line(path, _TRUSTED, '')}"
        # PyTorch then proposes to run the code.
        why = ValueError(f"it begins with {begin!r}") if "weights_only" in str(error) else error
        raise failure(why, f"{path} cannot be read as weights", remedy) from error
    tensors = _weights_in(path, found)
    size = opened.stat().st_size
    for name, tensor in tensors.items():
        told = tensor.numel() * tensor.element_size()
        if told > size or tensor.is_meta or tensor.layout != torch.strided:
            raise _hollow(path, f"{name} {tuple(tensor.shape)}, {size_text(told)}", size)
    return WeightFile(path, timm.models.clean_state_dict(tensors), is_pickle=True)


def _unpickled(path: Path, source: Path) -> Any:
    is_zip, unknown = zipfile.is_zipfile(source), list[str]()
    if is_zip:
        with zipfile.ZipFile(source) as archive:
            told = sum(each.file_size for each in archive.infolist())
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):  # TorchScript
                raise _object(path, "")
        if told > (size := source.stat().st_size):
            raise _hollow(path, f"{size_text(told)} of compressed parts", size)
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(str(source))
    inert: list[Any] = [(type(name.rpartition(".")[2], (_Inert,), {}), name) for name in unknown]
    with torch.serialization.safe_globals(inert):
        # With mmap, only the parts of a tensor that are read take memory.
        return torch.load(str(source), map_location="cpu", weights_only=True, mmap=is_zip)


def _hollow(path: Path, what: str, size: int) -> BackboneError:
    return BackboneError(
        f"{path} declares {what}, but is a file of {size_text(size)}",
        remedy="If you know its origin, store all numbers:"
        f" {_line(path, ')', 'w = {n: t.to_dense().clone() for n, t in w.items()}; ')}",
    )


def _weights_in(path: Path, found: Any) -> dict[str, Tensor]:
    """Return the mapping of names to tensors in the content of a file."""
    if isinstance(found, Mapping):
        for key in _KEYS:
            if isinstance(found.get(key), Mapping) and any(_mappings(found[key])):
                found = {key: found[key]}
                break
    sets = sorted(_mappings(found), key=lambda each: -len(each[1]))
    if sets and (len(sets) == 1 or len(sets[0][1]) > len(sets[1][1])):
        return sets[0][1]
    if sets:
        index = "".join(f"[{name!r}]" for name in sets[0][0].split("."))
        raise BackboneError(
            f"{path} contains several networks: {', '.join(key for key, _ in sets)}",
            remedy=f"Keep one: {_line(path, f'){index}', '')}",
        )
    objects = [""] if isinstance(found, _Inert) else []
    if isinstance(found, Mapping):
        inert = {k: type(v).__name__ for k, v in found.items() if isinstance(v, _Inert)}
        objects = ["" if kind == "_reconstruct" else f"[{key!r}]" for key, kind in inert.items()]
    if objects:
        raise _object(path, objects[0])
    told = examples(list(map(str, found))) if isinstance(found, Mapping) else type(found).__name__
    raise BackboneError(
        f"{path} contains no names with tensors, but {told or 'nothing'}",
        remedy="Save only the weights: a mapping of names to tensors.",
    )


def _mappings(found: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield all mappings of names to tensors, each with its key; single numbers do not count."""
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        return
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    if any(tensor.ndim for tensor in tensors.values()):
        yield key, tensors
    if depth < _DEEPEST:
        for name, value in found.items():
            yield from _mappings(value, f"{key}.{name}" if key else name, depth + 1)


def _object(path: Path, index: str) -> BackboneError:
    """Return the error for a network, or arrays of NumPy, that only their program can read."""
    change = "w = w.state_dict() if hasattr(w, 'state_dict') else w; "
    change += "w = {n: torch.as_tensor(t) for n, t in w.items()}; "
    return BackboneError(
        f"{path} contains no tensors, but objects of its program, which clinit never runs",
        remedy="If you trust the file, take its weights out:"
        f" {_line(path, f'{_TRUSTED}{index}', change)}",
    )


def _line(path: Path, load: str, change: str) -> str:
    """Return a command that loads a file of PyTorch, changes the weights `w`, and saves them.

    `load` ends the call of `torch.load`.
    """
    given, out = str(path), f"{path.stem}-weights.pth"
    code = f"import torch; w = torch.load({given!r}, 'cpu'{load}; {change}torch.save(w, {out!r})"
    plain = not set(code) & set('"$`\\!')
    return f'python -c "{code}"' if plain else f"python -c {shlex.quote(code)}"


CHANNELS_REMEDY = (
    "Convert the weights w of its first layer, without `in_chans`: w[:, :3], or if it has one"
    " channel w.repeat(1, 3, 1, 1) / 3, with which gray images give the same."
)


def failure(error: Exception, what: str, remedy: str) -> ClinitError:
    """Return the error to raise for an error of a library: a `MachineError` if memory is short."""
    if out_of_memory(error):
        return MachineError(
            f"not enough memory: {what}",
            remedy="Free memory, or choose a smaller backbone; then run the same command again.",
        )
    why = " ".join(str(error).split())[:300] or type(error).__name__
    return BackboneError(f"{what}: {why}", remedy=remedy)
