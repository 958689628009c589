"""The command reference is the one that typer writes of the commands as they are."""

import re
from typing import Any

import typer

from clinit.cli.main import app
from clinit.cli.reference import reference
from tests.docs.blocks import GENERATED, ROOT


def test_the_command_reference_is_current() -> None:
    stored = (ROOT / "docs" / GENERATED).read_text(encoding="utf-8")
    assert stored == reference(), "write it anew: `make reference`"


def test_the_command_reference_has_every_command_and_every_option() -> None:
    text = reference()
    sections = dict(re.findall(r"^#+ `?(.*?)`?\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL))
    for path, command in _walk(typer.main.get_command(app), "Commands"):
        options = [each for each in command.params if each.param_type_name == "option"]
        for option in (each for each in options if not each.hidden):
            assert all(
                f"`{name}" in sections[path] or f", {name}" in sections[path]
                for name in option.opts
            )


def test_no_description_of_a_command_is_cut() -> None:
    assert re.findall(r"^\* `.*`: .*\.\.\.$", reference(), re.MULTILINE) == []


def _walk(command: Any, path: str) -> list[tuple[str, Any]]:
    children = getattr(command, "commands", {})
    told = path.replace("Commands", "clinit")
    below = [each for name in children for each in _walk(children[name], f"{told} {name}")]
    return [(path, command), *below]
