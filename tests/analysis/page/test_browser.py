"""The page in a browser: headless Chromium, started once for this file."""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clinit.analysis.page.data import page_data
from clinit.analysis.runs import runs_of
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.words import visible
from tests.analysis.conftest import MakeRun

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

INITS = ("random", "class-mean", "least-square")
DIFFERING = (0, 1, 3)
"""Charts in which the made runs differ: in what they know of earlier tasks they do not."""
ORANGE, BLUE, GREEN = (213, 94, 0), (0, 114, 178), (0, 158, 115)
Open = Callable[..., Any]


@contextmanager
def launched() -> Iterator[Any]:
    # Chromium refuses its sandbox to root, who runs containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as running:
        yield running


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[RunRecord]], Path]:
    """Write the page of records, once for those that say the same."""
    written: dict[str, Path] = {}

    def write(records: list[RunRecord]) -> Path:
        key = json.dumps([record.info for record in records])
        if key not in written:
            written[key] = tmp_path_factory.mktemp("page") / "page.html"
            runs_of(records).save_html(written[key])
        return written[key]

    return write


@pytest.fixture
def open_page(browser: Any, page_of: Callable[[list[RunRecord]], Path]) -> Iterator[Open]:
    """Open the page of records, from a file; nothing may be asked for or complained about."""
    asked: list[str] = []
    complaints: list[str] = []
    contexts = []

    def open_(records: list[RunRecord], *, width: int = 1400, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(page_of(records).as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert complaints == []


@pytest.fixture
def records(make_run: MakeRun, noisy: Callable[..., RunRecord]) -> list[RunRecord]:
    made = []
    for init, peak in zip(INITS, (40.0, 8.0, 0.1), strict=True):
        for seed in (0, 1):
            record = noisy(make_run(init, seed=seed), seed=seed, peak=peak)
            record.info["command"] = ["clinit", "train-head", "--init", init]
            made.append(record)
    return made


def amount(page: Any, chart: int, colour: tuple[int, int, int]) -> int:
    """Return how many pixels of a chart have a colour, or nearly."""
    picture = Image.open(io.BytesIO(page.locator(".plot canvas").nth(chart).screenshot()))
    distance = np.abs(np.asarray(picture.convert("RGB")).astype(int) - colour).sum(axis=2)
    return int((distance < 30).sum())


def await_drawing(page: Any) -> None:
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def hover(page: Any, chart: int, x: float, y: float) -> str:
    page.locator(".plot .u-over").nth(chart).scroll_into_view_if_needed()
    box = page.locator(".plot .u-over").nth(chart).bounding_box()
    page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y)
    page.wait_for_selector(".hover:not([hidden])")
    return str(page.locator(".hover:not([hidden])").inner_text())


def wide(page: Any) -> bool:
    found: bool = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return found


def test_the_pointer_shows_task_iteration_and_values(
    open_page: Open, records: list[RunRecord]
) -> None:
    words = hover(open_page(records), 1, 0.5, 0.2)
    assert "task 2, iteration 100" in words
    assert "least-square (seed 0)" in words
    runs = page_data(runs_of(records).runs, ())
    place = [run["label"] for run in runs["runs"]].index("least-square (seed 0)")
    _, values = runs["curves"]["of"]["acc_new"][place][1]
    assert f"{values[2]:.4g} %" in words


def test_switching_off_an_initialisation_removes_its_curves(
    open_page: Open, records: list[RunRecord]
) -> None:
    page = open_page(records)
    page.get_by_label("class-mean").uncheck()
    await_drawing(page)
    for chart in DIFFERING:
        assert amount(page, chart, BLUE) == 0
        assert amount(page, chart, ORANGE) > 50
    assert "class-mean" not in hover(page, 1, 0.5, 0.2)
    page.get_by_label("class-mean").check()
    await_drawing(page)
    assert amount(page, 1, BLUE) > 50


def test_a_click_sorts_the_better_first_and_another_one_turns_it_round(
    open_page: Open, records: list[RunRecord]
) -> None:
    table = open_page(records).locator("table.results", has_text="Runs")

    def column() -> list[float]:
        return [float(text) for text in table.locator("tbody td:nth-child(4)").all_inner_texts()]

    heading, before = table.locator("th", has_text="A_all"), column()
    assert heading.get_attribute("aria-sort") == "none"
    heading.locator("button").click()
    assert column() == sorted(before, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    heading.locator("button").press("Enter")
    assert column() == sorted(before)
    assert heading.get_attribute("aria-sort") == "ascending"
    table.locator("th", has_text="L_new").locator("button").click()
    assert heading.get_attribute("aria-sort") == "none"


def test_the_loss_and_its_scale_can_be_chosen(open_page: Open, records: list[RunRecord]) -> None:
    page = open_page(records)
    assert page.get_by_label("logarithmic").is_checked()
    page.get_by_label("logarithmic").uncheck()
    assert page.evaluate("charts[0].scales.y.distr") == 1
    page.get_by_label("Which loss").select_option(label="L_new: loss on the current task")
    assert page.evaluate("charts[0].kind.name") == "loss_new"


def test_the_matrix_of_the_chosen_run_is_shown(open_page: Open, records: list[RunRecord]) -> None:
    page, data = open_page(records), page_data(runs_of(records).runs, ())["runs"]
    page.locator(".pair select").first.select_option(label="class-mean (seed 1)")
    run = next(run for run in data if run["label"] == "class-mean (seed 1)")
    shown = page.locator(".matrix").first.locator("td").all_inner_texts()
    flat = [value for line in run["matrix"]["cells"] for value in line]
    assert shown == ["" if value is None else f"{value:.1f}" for value in flat]


def test_hostile_names_are_shown_as_text(open_page: Open, hostile_runs: list[RunRecord]) -> None:
    page = open_page(hostile_runs)
    for width in (1400, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.title() != "seized"
        assert page.locator("img").count() == 0
        assert page.evaluate("document.scripts.length") == 3
        shown = page.locator("body").evaluate("(body) => body.textContent")
        for record in hostile_runs:
            assert visible(record.info["config"]["init"]) in shown
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        await_drawing(page)
        for record in hostile_runs:
            assert visible(str(record.info["device"])) in page.locator("#records").inner_text()
        assert not wide(page)
        hover(page, 1, 0.5, 0.5)
        assert not wide(page)


def test_every_control_is_reached_with_the_keyboard_and_has_a_name(
    open_page: Open, records: list[RunRecord]
) -> None:
    page = open_page(records)
    # Browsers make a region that scrolls a stop of its own; it has a name here.
    controls = page.locator("button, select, input, summary, a, [tabindex]").all()
    wanted = sum(control.is_visible() for control in controls)
    page.evaluate("""() => { window.reached = new Set();
        addEventListener("focusin", (event) => reached.add(event.target)); }""")
    for _ in range(wanted):
        page.keyboard.press("Tab")
    assert page.evaluate("reached.size") == wanted
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"  # of the last record
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    nameless = """[...document.querySelectorAll("select, input, [tabindex]")].filter(
        (each) => !each.labels?.length && !each.getAttribute("aria-label")).length"""
    assert page.evaluate(nameless) == 0
