"""The pages: their fenced blocks, their command lines, their links.

A comment in front of a block says what becomes of it:

<!-- not run: why -->      nobody runs it; the reason is for the reader
<!-- run -->               a block of commands that is run
<!-- parsed: why -->       once in a page: commands without a mark are only parsed
<!-- file: PATH -->        the content of a file of the source, for `docs/extend.md`
<!-- change: PATH -->      lines of such a file that change
"""

import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from clinit.cli.frame.config import recipe_names
from clinit.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
GENERATED = "commands.md"
"""The command reference: its blocks are usage lines of typer."""
RUN_IN_A_COPY = "extend.md"
"""Its blocks run in a copy of the source: tests/docs/test_extend.py."""
PLACEHOLDERS = ("…", "...")
"""They stand for words that a reader adds."""
_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^>]*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_BEFORE = re.compile(r"^(?:[A-Z][A-Z_]*=\S+ +)*(?:srun +|torchrun .*?--no-python +)?(?=clinit )")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: str
    """Name of the page."""
    line: int
    language: str
    text: str
    mark: str
    """What the comment in front of it says; empty without one."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def is_left_out(self) -> bool:
        """Whether a reason is given why it is not run."""
        return self.mark.startswith("not run")

    @property
    def is_run(self) -> bool:
        """Whether it is run with its page: Python, and commands that say so."""
        if self.is_left_out or self.page == RUN_IN_A_COPY:
            return False
        return self.language == "python" or self.mark == "run"

    @property
    def command_lines(self) -> Iterator[str]:
        """Its command lines; of a `console` block those behind a `$`."""
        for line in map(str.strip, self.text.replace("\\\n", " ").splitlines()):
            if self.language == "console":
                if line.startswith("$ "):
                    yield line.removeprefix("$ ")
            elif line and not line.startswith("#"):
                yield line


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        yield Block(page.name, line, found["language"], found["text"], found["mark"] or "")


def all_blocks() -> list[Block]:
    """Return the blocks of all pages but the command reference."""
    return [block for page in PAGES if page.name != GENERATED for block in blocks_of(page)]


def words_of(line: str) -> list[str]:
    """Return the words of a command line, without its comment and what stands before `clinit`."""
    line = re.sub(r"<\(.*?\)", "FILE", _BEFORE.sub("", line))
    return shlex.split(line, comments=True)


def found_command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the context of the command that `clinit WORD…` calls, and its further words."""
    command: Any = typer.main.get_command(app)
    context, rest = command.context_class(command, info_name="clinit"), words[1:]
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        command = command.commands[rest[0]]
        context = command.context_class(command, info_name=rest.pop(0), parent=context)
    return context, rest


def problem(words: list[str]) -> str | None:
    """Return what no command of clinit takes in `clinit WORD…`; None if all is well."""
    context, words = found_command(words[: words.index(">")] if ">" in words else words)
    command, told = context.command, [word for word in words if word not in PLACEHOLDERS]
    try:
        values, extra, _ = command.make_parser(context).parse_args(list(told))
        if extra:
            return f"{context.command_path} takes no further words {extra}"
        for parameter in command.params:
            if parameter.name == "config_file" and values.get("config_file") not in (
                None,
                *recipe_names(),
            ):
                continue  # a file of the reader
            if values.get(parameter.name) is not None:
                parameter.process_value(context, values[parameter.name])
            elif parameter.required and len(told) == len(words):
                return f"{context.command_path} lacks {parameter.opts[0]}"
    except typer.BadParameter.__base__ as error:  # type: ignore[misc]
        return f"{context.command_path}: {error.format_message()}"
    return None


def inline_commands(text: str) -> list[str]:
    """Return what is said of commands within the lines of a page."""
    without_blocks = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"(?<!`)`(clinit [a-z][^`]*)`", without_blocks)


def unknown(words: list[str]) -> list[str]:
    """Return the commands and options among the words of a command that there are not."""
    context, rest = found_command(words)
    if hasattr(context.command, "commands") and rest and not rest[0].startswith("-"):
        name = rest[0]
        return [] if name in PLACEHOLDERS or name == "|" or name.isupper() else [name]
    known = {name for each in context.command.params for name in each.opts} | {"--help", "-h"}
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]


def links_of(page: Path) -> list[str]:
    """Return the targets of the links of a page; what looks like one within code is none."""
    return _LINK.findall(_CODE.sub("code", page.read_text(encoding="utf-8")))


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()  # a link is its text
        kept = [sign for sign in words if sign in "-_ " or unicodedata.category(sign)[0] in "LN"]
        slug = "".join(kept).replace(" ", "-")
        anchors.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
        seen[slug] += 1
    return anchors
