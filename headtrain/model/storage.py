"""Read and write a model: a folder, or a file.

    model.safetensors    the network and its classes, or a head alone
    config.json          for timm (`clinit.headtrain.model.network`); not for a head alone
    README.md            the model card: `card.md` next to this file, filled in
    model.onnx           the same network for other runtimes; optional
    memory.safetensors   statistics and features of the classes, for later additions; optional

clinit needs no other file than the first, whose facts are a sealed JSON document under one key of
its metadata; those of a head alone are in its `origin`. A folder is written under a temporary name
and renamed, so that it is complete or absent. A file of a head contains the memory too, a file of a
network does not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from clinit.errors import ClinitError, HeadError, ModelError, StorageError
from clinit.extract.cache.head import Head, foreign_to_head, head_bytes, read_head, tensors_sha256
from clinit.files.arrays import open_arrays
from clinit.files.commit import commit_file, commit_folder
from clinit.files.documents import content_sha256
from clinit.files.paths import check_free, check_readable, exists, instead_of, is_file, is_folder
from clinit.headtrain.heads.temperature import divided
from clinit.headtrain.model import memory as remembered
from clinit.headtrain.model.card import card
from clinit.headtrain.model.engine import MEMORY_FILE, MODEL_FILE
from clinit.headtrain.model.facts import DOCUMENT, METADATA, ModelFacts, parse_facts
from clinit.headtrain.model.memory import Memory, check_backbone, memory_bytes, read_memory
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.settings import WRITES_MODELS
from clinit.words import examples

MEMORY_ARRAY = "memory"
"""Name of the array of a head file that contains the bytes of a memory."""
OF_A_HEAD = ("tasks", "temperature", "known", "history", "activation", "features")
"""Facts about a model in the `origin` of a head; what else is there is its record."""


def read_model(path: Path, device: str = "auto") -> Model:
    """Read a model; see `clinit.load`.

    Args:
        path: A model folder, a model file, a head file, or an ONNX file.
        device: As in `clinit.load`.
    """
    if path.suffix == ".onnx":
        from clinit.headtrain.model.onnx import load_onnx

        return load_onnx(path, device=device)
    with ExitStack() as stack:
        held = _held(path, stack)
        if is_head_file(path, held):
            head = read_head(held.get(MODEL_FILE, path))
            facts, engine = facts_of(head, path), None
        else:
            facts, content = _read(path, held)
            from clinit.headtrain.model.network import read_engine

            engine = read_engine(path, content, device, held)
            assert engine.backbone.head is not None
            head = replace(engine.backbone.head, class_names=facts.class_names)
        if facts.temperature is not None:  # as it was trained
            head = facts.temperature.multiplied(head)
        memory = memory_of(path, facts, held)
        model = Model(facts=facts, linear=head, memory=memory, origin=str(path), engine=engine)
    if memory is not None:
        check_backbone(model.depends_on, memory.backbone)
        if memory.dim != model.head.dim:
            raise remembered.DOCUMENT.refusal(
                f"{path} remembers features of {memory.dim:,} numbers, its network computes"
                f" {model.head.dim:,}"
            )
    return model


def is_head_file(path: Path, held: Mapping[str, Path] = {}) -> bool:
    """Return whether a model file, or that of a model folder, contains a head without a network."""
    file = held.get(MODEL_FILE) or _file_of(path)
    if path.suffix == ".npz":
        return True
    with suppress(SafetensorError, OSError):
        if is_file(file):
            with safe_open(file, framework="numpy") as opened:
                is_network = METADATA in (opened.metadata() or {})
                return not is_network and {"weight", "bias"} <= {*opened.keys()}
    return False


def facts_of(head: Head, path: Path | str = "a head") -> ModelFacts:
    """Return the facts about a model that is a head alone.

    Raises:
        HeadError: If the rows have no class names, or two rows the same.
        ModelError: If the facts are damaged.
    """
    if head.class_names is None:
        raise HeadError(
            f"the {head.num_classes:,} rows of the head have no class names",
            remedy="Write it again with `clinit.save_head(path, weight, bias, class_names)`.",
        )
    if twice := [name for name, n in Counter(head.class_names).items() if n > 1]:
        raise HeadError(
            f"the head has more than one row of the same name ({examples(twice)})",
            remedy="Write it again with different names: `clinit.save_head`.",
        )
    origin = dict(head.origin or {})
    if not isinstance(origin.get("temperature"), Mapping):  # a number of an earlier version
        origin["temperature"] = None
    content = {name: origin.pop(name) for name in OF_A_HEAD if origin.get(name) is not None}
    backbone = content.pop("features", {})
    content.setdefault("tasks", [0] * head.num_classes)
    content |= {
        "class_names": head.class_names,
        "fingerprint": {"fields": backbone},
        "backbone": backbone.get("backbone", "") if isinstance(backbone, Mapping) else "",
        "record": {name: told for name, told in origin.items() if name not in OF_A_HEAD},
        "digest": content_sha256([head.origin, head.class_names, tensors_sha256(head)]),
    }
    return DOCUMENT.convert(content, ModelFacts, origin=f"the description in {path}")


def _held(path: Path, stack: ExitStack) -> dict[str, Path]:
    """Open the files of a model folder until the stack ends; return other paths of them, by name.

    They stay those of one model if the folder is replaced while it is read. What cannot be opened
    has no path, and is reported by its reader.
    """
    held: dict[str, Path] = {}
    with suppress(OSError):
        while is_folder(path):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            for name in (MODEL_FILE, MEMORY_FILE):
                with suppress(OSError):
                    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
                    stack.callback(os.close, file)
                    held[name] = Path(f"/proc/self/fd/{file}")
            if os.path.samestat(path.stat(), os.fstat(folder)):
                break
            held.clear()
    return {name: place for name, place in held.items() if exists(place)}


def _file_of(path: Path) -> Path:
    return path / MODEL_FILE if is_folder(path) else path


def read_facts(path: Path) -> ModelFacts:
    """Read the facts about the model at `path`, without its network.

    Raises:
        ModelError: If there is no model at `path`, or it is damaged.
        HeadError: As in `read_model`.
    """
    return facts_of(read_head(_file_of(path)), path) if is_head_file(path) else _read(path, {})[0]


def parent_of(path: Path) -> tuple[Path | None, str]:
    """Return where a parent of a model is, at its place then or next to the model, and its name."""
    name = ""
    with suppress(ClinitError):
        for digest, origin in read_facts(path).parents.items():
            for place in (Path(origin), path.resolve().parent / Path(origin).name):
                with suppress(ClinitError):
                    if exists(place) and read_facts(place).digest == digest:
                        return place, origin
            name = origin
    return None, name


def _read(path: Path, held: Mapping[str, Path]) -> tuple[ModelFacts, dict[str, Any]]:
    """Read the facts in the file of a network, and its whole description."""
    file = _file_of(path)
    if is_folder(path) and not exists(file):
        is_run = is_file(path / "run.json")
        raise ModelError(
            f"{path} is a folder without a {MODEL_FILE}: it is not a model",
            remedy=f"Make one of this run: `clinit export {path} --out FOLDER`."
            if is_run
            else WRITES_MODELS,
        )
    if not is_file(file):
        raise ModelError(f"no model at {file}", remedy=instead_of(file, WRITES_MODELS, is_file))
    check_readable(file, ModelError)
    try:
        with safe_open(held.get(MODEL_FILE, file), framework="numpy") as opened:
            text = (opened.metadata() or {}).get(METADATA)
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise _no_model(f"{file} is not a model file, or damaged: {error}") from error
    if text is None:
        raise _no_model(f"{file} does not name its classes: it is no file of `clinit export`")
    return parse_facts(text, file)


def _no_model(why: str) -> ModelError:
    return ModelError(
        why,
        remedy=f"{WRITES_MODELS} `clinit add` takes a network of timm by `--backbone NAME"
        " --weights PATH`.",
    )


def memory_of(path: Path, facts: ModelFacts, held: Mapping[str, Path] = {}) -> Memory | None:
    """Read the memory of the model at `path`; None if it has none, as the file of a network.

    Raises:
        ModelError: If the memory is damaged, or has other classes.
    """
    file = path / MEMORY_FILE
    if not is_folder(path):
        memory = _memory_in(path) if is_head_file(path) else None
    elif MEMORY_FILE not in held and not os.path.lexists(file):
        return None  # but a broken link is a lost memory, which is an error
    else:
        try:
            memory = read_memory(held.get(MEMORY_FILE, file))
        except ModelError:
            memory = read_memory(file)  # fails too, and names the file
    if memory is not None and memory.class_names != facts.class_names:
        raise remembered.DOCUMENT.refusal(
            f"{file} remembers {len(memory.class_names):,} classes that differ from"
            f" the {facts.num_classes:,} of the model"
        )
    return memory


def _memory_in(path: Path) -> Memory | None:
    """Read the memory in a head file; None if the file has none."""
    file = open_arrays(path)
    if MEMORY_ARRAY not in (file.names() or ()):
        return None
    with NamedTemporaryFile(suffix=".safetensors") as draft:
        draft.write(file.array(MEMORY_ARRAY).tobytes())
        draft.flush()
        try:
            return read_memory(Path(draft.name))
        except ModelError as error:
            why = str(error).replace(draft.name, path.name)
            raise remembered.DOCUMENT.refusal(f"the memory in {path} is damaged: {why}") from error


def _in_origin(facts: ModelFacts) -> dict[str, Any]:
    """Return what the `origin` of a head contains."""
    found = {name: told for name, told in asdict(facts).items() if name in OF_A_HEAD}
    defaults = {each.name: each.default for each in fields(ModelFacts)}
    found = {n: told for n, told in found.items() if n == "temperature" or told != defaults.get(n)}
    found |= {"features": dict(facts.fingerprint.fields)} if facts.fingerprint.fields else {}
    return {**facts.record, **found}


CARD_FILE, ONNX_FILE = "README.md", "model.onnx"
_FILES = frozenset({MODEL_FILE, "config.json", CARD_FILE, ONNX_FILE, MEMORY_FILE})


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A model that was written."""

    path: Path
    model: Model
    onnx: str | None = None
    """Comparison with the ONNX file, in words; None if none was written."""


def write_model(model: Model, out: Path, *, onnx: bool = False, overwrite: bool = False) -> Written:
    """Write a model to `out`; see `Model.save`.

    The head is written divided by its temperature.

    Raises:
        ModelError: If `out` exists and may not be replaced, if timm cannot load the network from
            a folder, or if the ONNX file computes something else.
        BackboneError: If the network cannot take the head.
        ClinitError: If the model cannot be written; nothing is left behind then.
    """
    check_free(out, "model", foreign_to_model, ModelError, overwrite=overwrite)
    check_kind(model, out)
    if onnx:
        model.need_engine()
        if out.suffix in (".npz", ".safetensors"):
            raise ValueError(f"ONNX needs a folder, a head alone a file, got {out}")
    is_file = out.suffix in (".npz", ".safetensors")
    found = list[str]()
    if model.engine is None:
        head = divided(model.head, model.facts.temperature)
        head, beside = replace(head, origin=_in_origin(model.facts)), dict[str, np.ndarray]()
        if is_file and model.memory is not None:
            beside[MEMORY_ARRAY] = np.frombuffer(memory_bytes(model.memory), np.uint8)

        def write_file(draft: Path) -> None:
            draft.write_bytes(head_bytes(head, out.suffix, beside))
    else:
        from clinit.headtrain.model import network as networks

        network, text = networks.network_of(model)

        def write_file(draft: Path) -> None:
            networks.write_weights(network, text, draft)

    def write_folder(draft: Path) -> None:
        write_file(draft / MODEL_FILE)
        if model.engine is not None:
            networks.write_for_timm(network, model, draft)
        if onnx:
            from clinit.headtrain.model.onnx import write_onnx

            found.append(write_onnx(network, model, text, draft / ONNX_FILE))
        if model.memory is not None:
            (draft / MEMORY_FILE).write_bytes(memory_bytes(model.memory))
        (draft / CARD_FILE).write_text(card(model), encoding="utf-8")

    if is_file:
        commit_file(out, write_file)
    else:
        commit_folder(out, write_folder, overwrite=overwrite)
    kept = replace(model, origin=str(out), facts=read_facts(out))
    return Written(out, kept, found[0] if found else None)


def check_kind(model: Model, out: Path) -> None:
    """Check that a model has what a file of this name contains.

    Raises:
        ModelError: If it has not.
    """
    if out.suffix == ".npz" and model.engine is not None:
        raise ModelError(
            f"{out} can contain a head alone, but {model.origin} has a network",
            remedy="Write a folder or a file that ends in .safetensors; `clinit export MODEL --out"
            " FILE.npz` writes its head.",
        )


def check_apart(writes: Path, reads: Path) -> None:
    """Check that a path to write is not in a folder that is only read.

    Raises:
        ModelError: If `writes` is `reads` or in it.
    """
    place, other = writes.resolve(), reads.resolve()
    if place == other or other in place.parents:
        raise ModelError(
            f"{writes} is {'' if place == other else f'in {reads}, which is '}only read",
            remedy="Choose another place for the new model (`--out`) or for features"
            " (`--features`).",
        )


def foreign_to_model(path: Path) -> str | None:
    """Return why an existing file or folder is no model; None for a model."""
    others = sorted({each.name for each in path.iterdir()} - _FILES) if is_folder(path) else []
    if others:
        belong = "does not belong" if len(others) == 1 else "do not belong"
        return f"it holds {', '.join(others[:3])}, which {belong} to a model folder"
    file = path / MODEL_FILE if is_folder(path) else path
    if foreign_to_head(file) is None:
        return None  # a head alone may be replaced, too
    if is_head_file(file):
        return "it is not a head written by clinit"
    try:
        read_facts(path)
    except (ModelError, StorageError):
        return "it is no model"
    return None
