"""Command lines of the pages, compared with the commands that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from clinit.cli.main import app
from clinit.cli.recipe import names
from tests.docs.blocks import Block

RECIPES = (None, *names())
PLACEHOLDERS = ("…", "...")
"""They stand for words that a reader adds."""
_BEFORE = re.compile(r"^(?:[A-Z][A-Z_]*=\S+ +)*(?:srun +|torchrun .*?--no-python +)?(?=clinit )")
_SUBSTITUTED = re.compile(r"<\(.*?\)")


def command_lines(block: Block) -> Iterator[str]:
    """Yield the command lines of a block; of a `console` block those behind a `$`."""
    text = block.text.replace("\\\n", " ")
    for line in map(str.strip, text.splitlines()):
        if block.language == "console":
            if line.startswith("$ "):
                yield line.removeprefix("$ ")
        elif line and not line.startswith("#"):
            yield line


def words_of(line: str) -> list[str]:
    """Return the words of a command line, without its comment and what stands before `clinit`."""
    return shlex.split(_SUBSTITUTED.sub("FILE", _BEFORE.sub("", line)), comments=True)


def problem(words: list[str]) -> str | None:
    """Return what no command of clinit takes in `clinit WORD…`; None where all is well."""
    words = words[: words.index(">")] if ">" in words else words
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name=words[0])
    rest, path = words[1:], words[0]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return f"{path} has no command {name!r}"
        command, path = command.commands[name], f"{path} {name}"
        context = command.context_class(command, info_name=name, parent=context)
    return _misread(context, path, rest)


def _misread(context: Any, path: str, words: list[str]) -> str | None:
    command = context.command
    told = [word for word in words if word not in PLACEHOLDERS]
    try:
        values, extra, _ = command.make_parser(context).parse_args(list(told))
        if extra:
            return f"{path} takes no further words {extra}"
        for parameter in command.params:
            if parameter.name == "config_file" and values.get("config_file") not in RECIPES:
                continue  # a file of the reader
            if values.get(parameter.name) is not None:
                parameter.process_value(context, values[parameter.name])
            elif parameter.required and len(told) == len(words):
                return f"{path} lacks {parameter.opts[0]}"
    except typer.BadParameter.__base__ as error:  # type: ignore[misc]
        return f"{path}: {error.format_message()}"
    return None


def inline_commands(text: str) -> list[str]:
    """Return what is said of commands within the lines of a page."""
    without_blocks = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"(?<!`)`(clinit [a-z][^`]*)`", without_blocks)


def unknown(words: list[str]) -> list[str]:
    """Return the commands and options among the words of a command that there are not."""
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name in PLACEHOLDERS or name == "|" or name.isupper():
            return []
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]
