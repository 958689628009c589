"""What lies beside containers and describes them.

* `dataset_info.json` of Hugging Face: `features`, and `splits` with `num_examples`;
* the front matter of `README.md`, a data set card: the same under `dataset_info`, in other words;
* `_info.json` or `info.json` of WebDataset, as timm writes it: `splits` with `num_samples`;
* `classnames.txt`, `class_names.txt` or `classes.txt`: one class name per line, in label order.

They are looked for in the root, and in the one revision of a download of the Hugging Face Hub.
Nothing of it has to be there, and what is not as expected is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import huggingface_hub
import msgspec

from clinit.extract.class_names import read_class_names
from clinit.extract.containers.hub import snapshot
from clinit.extract.containers.parquet_table import Features, features_of
from clinit.extract.tree import Tree
from clinit.files.text import TextFileError, read_text

NAME_FILES = ("classnames.txt", "class_names.txt", "classes.txt")
_DOCUMENTS = ("dataset_info.json", "_info.json", "info.json")
_COUNTS = ("num_examples", "num_samples")


@dataclass(frozen=True, slots=True)
class Card:
    """The description of a data set; empty where there is none."""

    features: Features = field(default_factory=dict)
    """Column -> its description, in the words of `dataset_info.json`."""
    images: dict[str, int] = field(default_factory=dict)
    """train, validation or test -> number of images."""


def read_card(tree: Tree) -> Card:
    """Read the description of a data set.

    Raises:
        ManifestError: If the root holds several revisions.
    """
    for name in _DOCUMENTS:
        if (path := _file(tree, name)) is not None:
            try:
                document = msgspec.json.decode(read_text(path))
            except (TextFileError, msgspec.DecodeError, RecursionError):
                continue
            return Card(features_of(document), _counts(document))
    return _of_readme(tree)


def read_names(tree: Tree) -> tuple[str, ...] | None:
    """Return the class names of the file of them, if there is one.

    Raises:
        ManifestError: If the root holds several revisions.
        CacheError: If it cannot be read, or names no class or one twice.
    """
    path = next(filter(None, (_file(tree, name) for name in NAME_FILES)), None)
    return None if path is None else read_class_names(path)


def _file(tree: Tree, name: str) -> Path | None:
    """Return the path of a file that describes the data set, if it is there."""
    path, folder = tree.file(name), snapshot(tree)
    return tree.file(f"{folder}/{name}") if path is None and folder is not None else path


def _of_readme(tree: Tree) -> Card:
    path = _file(tree, "README.md")
    if path is None:
        return Card()
    try:
        read_text(path)  # never without end
        info: Any = (huggingface_hub.metadata_load(path) or {}).get("dataset_info")
    except Exception:  # whatever YAML raises: a README is no reason to stop
        return Card()
    if isinstance(info, list):  # one for each configuration
        info = info[0] if len(info) == 1 else None
    if not isinstance(info, dict):
        return Card()
    listed = info.get("features")
    if not isinstance(listed, list):
        listed = []
    features = [each for each in listed if isinstance(each, dict)]
    return Card(
        {str(each.get("name")): _feature(each.get("dtype")) for each in features}, _counts(info)
    )


def _feature(kind: object) -> dict[str, Any]:
    """Return a feature of a card in the words of `dataset_info.json`."""
    if kind == "image":
        return {"_type": "Image"}
    if isinstance(kind, dict) and isinstance(kind.get("class_label"), dict):
        names = kind["class_label"].get("names")
        if isinstance(names, dict):  # '0': cat, '1': dog
            names = [names.get(str(label)) for label in range(len(names))]
        return {"_type": "ClassLabel", "names": names}
    return {}


def _counts(document: object) -> dict[str, int]:
    splits = document.get("splits") if isinstance(document, dict) else None
    if isinstance(splits, list):
        splits = {each.get("name"): each for each in splits if isinstance(each, dict)}
    if not isinstance(splits, dict):
        return {}
    named = {name: each for name, each in splits.items() if isinstance(each, dict)}
    found = {n: next((e[k] for k in _COUNTS if k in e), None) for n, e in named.items()}
    return {str(name): count for name, count in found.items() if isinstance(count, int)}
