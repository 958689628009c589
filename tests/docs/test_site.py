"""The site builds without a warning, and loads nothing from elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

ZENSICAL = Path(sys.executable).with_name("zensical")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ZENSICAL.is_file(), reason="needs Zensical"),
]
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that load what an attribute names."""


class Loaded(HTMLParser):
    """What a page loads, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag in LOADS and LOADS[tag] in named and named.get("rel") != "canonical":
            self.places.append(named[LOADS[tag]])
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        if "id" in named:
            self.anchors.add(named["id"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy: nothing is written into the source."""
    root = tmp_path_factory.mktemp("site")
    for name in ("docs", "src", "analysis", "cli", "data_manifests", "extract", "headtrain"):
        shutil.copytree(ROOT / name, root / name, symlinks=True)
    shutil.copy(ROOT / "zensical.toml", root)
    done = subprocess.run(
        [ZENSICAL, "build", "--clean", "--strict"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stderr
    return root / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Loaded]:
    """The pages of the site by name."""
    found = {}
    for path in site.glob("*.html"):
        found[path.name] = Loaded()
        found[path.name].feed(path.read_text(encoding="utf-8"))
    return found


def test_there_is_a_page_for_every_page(pages: dict[str, Loaded]) -> None:
    written = {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    assert written <= pages.keys()


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, Loaded]) -> None:
    for name, page in pages.items():
        for place in page.places:
            assert not re.match(r"(\w+:)?//", place), f"{name} loads {place}"
            assert (site / place.partition("?")[0].removeprefix("/")).exists(), f"{name}: {place}"
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//[^)]*", text) == [], path.name


def test_links_within_the_site_lead_somewhere(site: Path, pages: dict[str, Loaded]) -> None:
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:|//", link) or name == "404.html":
                continue
            target, _, anchor = link.partition("#")
            file = target.removeprefix("./") or name
            if file in ("", "."):
                file = "index.html"
            assert (site / file).exists(), f"{name} links {link}"
            if anchor and file in pages:
                assert anchor in pages[file].anchors, f"{name} links {link}"


def test_the_python_reference_has_every_public_name(pages: dict[str, Loaded]) -> None:
    import clinit

    public = {name for name in clinit.__all__ if not name.startswith("__")}
    assert {f"clinit.{name}" for name in public} <= pages["api.html"].anchors


def test_tables_and_lists_are_rendered(site: Path) -> None:
    """What Python-Markdown reads otherwise than GitHub would be left as it is typed."""
    for path in site.glob("*.html"):
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", path.read_text("utf-8"), flags=re.DOTALL)
        assert re.findall(r"<p>\|.*\||^\| .* \|$", text, re.MULTILINE) == [], path.name
        assert re.findall(r"^ {0,3}(?:\*|-|\d+\.) .*", text, re.MULTILINE) == [], path.name
        assert "```" not in text, path.name
