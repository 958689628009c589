"""Recipes: files of options that are part of clinit."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from clinit.errors import ConfigFileError
from clinit.files.paths import is_file
from clinit.files.text import TextFileError, read_text
from clinit.words import closest

_FOLDER = files("clinit.cli") / "recipes"


def names() -> list[str]:
    """Return the names of the recipes in alphabetical order."""
    return sorted(path.name.removesuffix(".toml") for path in _FOLDER.iterdir())


def recipe(name: str) -> str:
    """Return the text of a recipe.

    Raises:
        ConfigFileError: If there is no recipe of that name.
    """
    if name not in names():
        raise ConfigFileError(f"there is no recipe {name!r}", remedy=_proposal(name))
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def open_text(path: Path) -> tuple[str, str]:
    """Return name (for messages) and text of a file or, if it does not exist, of a recipe.

    Raises:
        ConfigFileError: If neither exists.
    """
    if not is_file(path) and str(path) in names():
        return f"the recipe {path}", recipe(str(path))
    try:
        return str(path), read_text(path)
    except TextFileError as error:
        raise ConfigFileError(
            f"cannot read the options in {path}: {error}",
            remedy=_proposal(path.name.removesuffix(".toml")),
        ) from error


def _proposal(name: str) -> str:
    if (found := closest(name, names())) is not None:
        return f"Did you mean the recipe {found!r}?"
    return "Give a TOML file, or a recipe of `clinit recipe list`."
