"""The messages that `docs/faults.md` explains are messages of the source."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
ROWS = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.splitlines() if " | " in line]
MESSAGES = [found[1] for row in ROWS if (found := re.match(r"`([^`]+)`", row))]


def literals() -> Iterator[str]:
    """Yield the texts of the source; `…` stands for what is put into them."""
    for part in ("analysis", "cli", "extract", "headtrain", "src/clinit"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(
                        str(getattr(each, "value", "…")) if isinstance(each, ast.Constant) else "…"
                        for each in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


TEXTS = list(literals())


def test_the_page_explains_many_messages() -> None:
    assert len(MESSAGES) > 40


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_the_source(message: str) -> None:
    words = [re.escape(part.strip()) for part in message.split("…") if part.strip(" :")]
    pattern = re.compile(".*?".join(words), re.DOTALL)
    assert any(pattern.search(text) for text in TEXTS)
