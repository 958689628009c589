"""The site builds without a warning, and loads nothing from elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

ZENSICAL = Path(sys.executable).with_name("zensical")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not ZENSICAL.is_file(), reason="needs Zensical")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy: nothing is written into the source."""
    root = tmp_path_factory.mktemp("site")
    for name in ("docs", "src", "analysis", "cli", "data_manifests", "extract", "headtrain"):
        shutil.copytree(ROOT / name, root / name, symlinks=True)
    shutil.copy(ROOT / "zensical.toml", root)
    done = subprocess.run(
        [ZENSICAL, "build", "--clean", "--strict"],  # of a link that leads nowhere, it warns
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stderr
    return root / "site"


def test_every_page_is_there_rendered_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= pages.keys()
    for name, page in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*?src=\"([^\"]*)", page)
        loaded += re.findall(r"<link\b(?![^>]*canonical)[^>]*?href=\"([^\"]*)", page)
        for place in loaded:
            assert not re.match(r"(\w+:)?//", place), f"{name} loads {place}"
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", page, flags=re.DOTALL)
        assert re.findall(r"<p>\|.*\||^\| .* \|$", text, re.MULTILINE) == [], name
        assert "```" not in text, name
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//[^)]*", text) == [], path.name


def test_the_python_reference_has_every_public_name(site: Path) -> None:
    import clinit

    page = (site / "api.html").read_text(encoding="utf-8")
    public = {name for name in clinit.__all__ if not name.startswith("__")}
    assert {name for name in public if f'id="clinit.{name}"' not in page} == set()
