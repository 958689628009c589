"""A value of a file of options, as it would be written on the command line."""

from __future__ import annotations

from clinit.cli.config_toml import kind
from clinit.errors import ConfigFileError
from clinit.words import visible

_DIGITS = 18
"""Most digits of an integer."""


def words(file: str, key: str, value: object, *, several: bool) -> str | list[str]:
    """Return a value as on the command line, so that it is checked in the same way.

    Raises:
        ConfigFileError: If its type is one that no option takes, or it cannot be printed in the
            help, which shows it as a default.
    """
    values = value if isinstance(value, list) else [value]
    if not several and isinstance(value, list):
        raise ConfigFileError(
            f"{file} gives {key!r} a list, but the option takes one value",
            remedy=f"Write one value: `{key} = ...`.",
        )
    for each in values:
        if not isinstance(each, str | int | float):
            raise ConfigFileError(
                f"{file} gives {key!r} a {kind(each)}, expected a string, a number, true or false",
                remedy="Write one option per line, at the top of the file or in a section.",
            )
        if isinstance(each, int) and abs(each) >= 10**_DIGITS:
            raise ConfigFileError(
                f"{file} gives {key!r} a number of more than {_DIGITS} digits",
                remedy="Write a number that the option takes; its help names the range.",
            )
        if isinstance(each, str) and visible(each) != each:
            raise ConfigFileError(
                f"{file} gives {key!r} a string with control characters: {visible(each)}",
                remedy="Write the value without them.",
            )
    texts = [str(each) for each in values]
    return texts if several else texts[0]
