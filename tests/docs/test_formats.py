"""`docs/formats.md` names every format of the source, and what is read of earlier ones."""

import re

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
FORMAT = re.compile(r"[\"b]clinit-([a-z]+)/(\d+)")


def test_every_format_has_its_line() -> None:
    found = set()
    for part in ("extract", "headtrain"):
        for path in (ROOT / part).rglob("*.py"):
            found |= set(FORMAT.findall(path.read_text(encoding="utf-8")))
    assert len({name for name, _ in found}) >= 10
    lines = {
        name: next(re.finditer(rf"^\|.*`clinit-{name}/.*$", PAGE, re.MULTILINE))
        for name, _ in found
    }
    for name, number in found:
        assert f"/{number}`" in lines[name][0], f"clinit-{name}/{number}"
