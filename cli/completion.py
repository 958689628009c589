"""What a shell proposes for a word of the command line that is being typed.

Each function is the `autocompletion` of an option or an argument. The shell starts a process for
every press of its key, so nothing here loads a library that computes, and no folder is searched
for long. Where nothing is proposed, shells complete the names of files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from clinit.cli.context import Context

_DEPTH = 3
"""Most folders below what is typed in which a cache, a run or a model is looked for."""
_WIDE, _MOST = 200, 2_000
"""Most folders that are looked into at one depth, and most entries of each: images are many."""
_ARCHITECTURE = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)
_PRETRAINED = re.compile(r"""^\s+['"](\w+\.\w+)['"]\s*:""", re.MULTILINE)


def backbones(incomplete: str) -> list[str]:
    """Propose names of timm's networks, with the tags of their weights.

    They are read from the source of the timm that is installed: to import it takes seconds.
    """
    found = find_spec("timm")
    if found is None or found.origin is None:
        return []
    names: set[str] = set()
    for path in Path(found.origin).parent.glob("models/*.py"):
        source = path.read_text(encoding="utf-8")
        names.update(_ARCHITECTURE.findall(source), _PRETRAINED.findall(source))
    return _beginning((name for name in names if not name.endswith(".untrained")), incomplete)


def datasets(incomplete: str) -> list[str]:
    """Propose data sets: those that are described, and layouts that describe themselves."""
    from clinit.extract.dataset.known import FOLDER, HUGGINGFACE, WEBDATASET, known_datasets

    return _beginning((*known_datasets(), FOLDER, WEBDATASET, HUGGINGFACE), incomplete)


def described_datasets(incomplete: str) -> list[str]:
    """Propose data sets that are described."""
    from clinit.extract.dataset.known import known_datasets

    return _beginning(known_datasets(), incomplete)


def recipes(incomplete: str) -> list[str]:
    """Propose recipes."""
    found = (files("clinit.cli") / "recipes").iterdir()
    return _beginning((path.name.removesuffix(".toml") for path in found), incomplete)


def recipes_or_files(incomplete: str) -> list[str]:
    """Propose recipes, and files of options beside what is typed."""
    own = [path for path, _ in _entries(incomplete) if path.endswith(".toml")]
    return [*recipes(incomplete), *sorted(own)]


def tables(incomplete: str) -> list[str]:
    """Propose tables of the paper."""
    from clinit.analysis.paper.tables import NAMES

    return _beginning((*NAMES, "all"), incomplete)


def caches(incomplete: str) -> list[str]:
    """Propose feature caches below what is typed."""
    return _holding(incomplete, "train/plan.json", "val/plan.json")


def runs(incomplete: str) -> list[str]:
    """Propose run records below what is typed."""
    return _holding(incomplete, "run.json")


def models(incomplete: str) -> list[str]:
    """Propose model folders below what is typed."""
    return _holding(incomplete, "model.safetensors")


def grid(context: Context, incomplete: str) -> list[str]:
    """Propose fields of a grid, and the words that a field takes: `init=random,lda`.

    Bash hands on `init=ra` as three words, with what is before the last one in the arguments.
    """
    words = [str(word) for word in context.params.get("grid") or ()]
    name, equals, typed = incomplete.partition("=")
    if equals:
        return [f"{name}={value}" for value in _values(context, name, typed)]
    before = words[:-1] if words[-1:] == ["="] else words
    if before and "=" not in before[-1]:
        return _values(context, before[-1], incomplete)
    return [f"{name}=" for name in _fields(context) if name.startswith(incomplete)]


def _fields(context: Context) -> Iterable[str]:
    from clinit.headtrain.sweep.grid import fields

    return fields(top=bool(context.params.get("top")))


def _values(context: Context, name: str, typed: str) -> list[str]:
    """Return lists of words that a field takes and that begin with `typed`; none for numbers."""
    from clinit.errors import ExperimentError
    from clinit.headtrain.study.parts import HEAD_METHODS, TOP_METHODS
    from clinit.headtrain.sweep.grid import field_named

    top = bool(context.params.get("top"))
    try:
        field = field_named(name, top=top)
    except ExperimentError:
        return []
    listed, comma, last = typed.rpartition(",")
    words = ("true", "false") if bool in field.types else field.words
    if field.name == "method":
        words = TOP_METHODS if top else HEAD_METHODS
    free = [word for word in words if word not in listed.split(",")]
    return [f"{listed}{comma}{word}" for word in free if word.startswith(last)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _holding(incomplete: str, *markers: str) -> list[str]:
    """Return folders that begin with what is typed and hold one of the files."""
    level = list(_folders(incomplete))
    found: list[str] = []
    for _ in range(_DEPTH):
        others: list[str] = []
        for folder in level:
            held = any(Path(folder, marker).is_file() for marker in markers)
            (found if held else others).append(folder)
        level = [
            inner for folder in others[:_WIDE] for inner in islice(_folders(f"{folder}/"), _MOST)
        ]
    return sorted(found)


def _folders(incomplete: str) -> Iterator[str]:
    return (path for path, entry in _entries(incomplete) if entry.is_dir())


def _entries(incomplete: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield what begins with a path that is being typed, and the path; not what is hidden."""
    folder, slash, name = incomplete.rpartition("/")
    try:
        with os.scandir(folder + slash or ".") as entries:
            for entry in entries:
                if entry.name.startswith(name) and not entry.name.startswith("."):
                    yield folder + slash + entry.name, entry
    except OSError:
        return
