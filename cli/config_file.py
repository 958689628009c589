"""Options of a command from a TOML file: keys are option names, and the command line wins."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from clinit.cli.context import Context
from clinit.errors import ConfigFileError


def read_config(context: Context, path: Path | None) -> Path | None:
    """Take the content of `path` as the defaults of the command's options.

    For an eager option: the values are there before the other options are read, and are
    checked like words of the command line.

    Raises:
        ConfigFileError: If the file is missing or no TOML, a key is no option, or a value is
            of a kind that no option takes.
    """
    if path is not None:
        options = {
            parameter.opts[0].removeprefix("--"): parameter
            for parameter in context.command.params
            if parameter.opts[0].startswith("--")
            and parameter.expose_value
            and not parameter.is_eager
        }
        defaults: dict[str, Any] = dict(context.default_map or {})
        for key, value in _content(path).items():
            if key not in options:
                raise _unknown(path, key, list(options))
            option: Any = options[key]
            defaults[option.name] = _words(path, key, value, several=bool(option.multiple))
        context.default_map = defaults
    return path


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigFileError(
            f"cannot read the options in {path}: {error.strerror}",
            remedy="Give a TOML file with --config.",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigFileError(
            f"{path} is not TOML: {error}",
            remedy='Write one option a line, as in `iterations = 600` or `init = ["random"]`.',
        ) from error


def _unknown(path: Path, key: str, known: list[str]) -> ConfigFileError:
    close = difflib.get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.5)
    return ConfigFileError(
        f"{path} sets {key!r}, which is no option of this command",
        remedy=f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(known)}.",
    )


def _words(path: Path, key: str, value: object, *, several: bool) -> str | list[str]:
    """Return a value as on the command line, so that it is checked like there."""
    values = value if isinstance(value, list) else [value]
    if not several and isinstance(value, list):
        raise ConfigFileError(
            f"{path} gives {key!r} a list, but the option takes one value",
            remedy=f"Write one value: `{key} = ...`.",
        )
    for each in values:
        if not isinstance(each, str | int | float):
            raise ConfigFileError(
                f"{path} gives {key!r} a {_kind(each)}, expected a string, a number, true or false",
                remedy="Write options at the top level of the file, one a line.",
            )
    words = [str(each) for each in values]
    return words if several else words[0]


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "table", list: "list in a list"}
    return names.get(type(value), type(value).__name__)
