import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from clinit.analysis.page.data import page_data
from clinit.analysis.page.page import escaped_json
from clinit.analysis.runs import load_runs, runs_of
from clinit.errors import RecordError
from clinit.headtrain.protocol.record.format import RunRecord
from tests.analysis.conftest import MakeRun


class Elements(HTMLParser):
    """Tags, attributes, and the texts of elements that are read as they are."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.raw.append(data)


def test_the_page_holds_the_data_of_the_report(three_inits: Path, tmp_path: Path) -> None:
    report = load_runs(three_inits)
    report.save_html(tmp_path / "page.html")
    again = load_runs(three_inits).html()
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == again, "the same bytes"
    assert "Copyright (c) 2022 Leon Sorokin" in again
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', report.html()
    )
    assert json.loads(found) == json.loads(json.dumps(page_data(report.runs, report.notes)))


def test_escaped_json_holds_no_character_that_html_reads() -> None:
    texts = ["</script>", "<!--", "]]>", "&lt;", "\u2028\u2029", "\ud800", "é"]
    escaped = escaped_json({"texts": texts})
    assert not set("<>&\u2028\u2029") & set(escaped)
    assert escaped.isascii()
    assert json.loads(escaped) == {"texts": texts}


def test_hostile_names_make_no_element(make_run: MakeRun, hostile_runs: list[RunRecord]) -> None:
    plain = Elements(runs_of([make_run(seed=seed) for seed in range(5)]).html())
    hostile = Elements(runs_of(hostile_runs).html())
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    names = [[*attributes] for _, attributes in hostile.tags]
    assert names == [[*attributes] for _, attributes in plain.tags]


def test_the_policy_allows_the_scripts_and_styles_of_the_page_alone(three_inits: Path) -> None:
    page = Elements(load_runs(three_inits).html())
    (policy,) = (
        attributes["content"]
        for tag, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    style, _data, *scripts = page.raw
    assert len(scripts) == 2
    for text in (style, *scripts):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


@pytest.mark.parametrize("name", ["page.pdf", "page"])
def test_another_ending_is_refused(three_inits: Path, tmp_path: Path, name: str) -> None:
    ending = Path(name).suffix or "missing"
    with pytest.raises(RecordError, match=f"its ending is '{re.escape(ending)}'") as caught:
        load_runs(three_inits).save_html(tmp_path / name)
    assert ".html" in caught.value.remedy
    assert not (tmp_path / name).exists()
