"""Links lead to files and headings that there are."""

import tomllib
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.links import anchors_of, links_of, slug_of

WRITTEN = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *sorted((ROOT / "tests" / "data").rglob("*.md")),
]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in links_of(page):
        if target.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.is_relative_to(ROOT), target
        assert path.exists(), target
        if anchor:
            assert anchor in anchors_of(path), target


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_pages_of_the_site_link_pages_of_the_site_alone(page: Path) -> None:
    """What lies beside `docs/` is not there in the site."""
    outside = [target for target in links_of(page) if target.startswith("../")]
    assert outside == []


def test_the_navigation_names_every_page_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    named = [page for entry in nav for value in entry.values() for page in _pages(value)]
    assert sorted(named) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def _pages(value: str | list[dict[str, str]]) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [page for entry in value for page in entry.values()]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("From photographs to predictions", "from-photographs-to-predictions"),
        ("`run.json`", "runjson"),
        ("Loss on the new task: L_new", "loss-on-the-new-task-l_new"),
        ("A [link](x.md) in it", "a-link-in-it"),
        ("Größe & Maß", "größe--maß"),
    ],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert slug_of(heading) == anchor
