"""Photographs on a page, in headless Chromium: what is ticked becomes a command that works."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("playwright", reason="needs playwright")  # else the next import is half done

from tests.analysis.page import test_browser

pytestmark = test_browser.pytestmark


def ticked(page: Path, above: str, drop: str) -> str:
    """Tick all photographs of a section, do not move one; return the lines for a shell."""
    told = list[str]()
    with test_browser.launched() as browser:
        shown = browser.new_page(viewport={"width": 1280, "height": 900})
        shown.on("request", lambda request: told.append(request.url))
        shown.on("console", lambda message: told.append(message.text))
        shown.on("pageerror", lambda error: told.append(str(error)))
        shown.goto(page.as_uri())
        assert not shown.locator("#chosen").is_visible()
        shown.locator("section", has_text=above).locator("button.all").first.click()
        own = shown.locator("figure", has=shown.locator(f'input[value="{drop}"]'))
        own.locator("input.to").first.uncheck()
        script = str(shown.locator("#script").text_content())
        for width in (1280, 400):
            shown.set_viewport_size({"width": width, "height": 900})
            assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [each for each in told if not each.startswith(("file:", "data:"))] == []
    return script


def clinit(folder: Path, text: str) -> str:
    """Run lines of a shell in a folder, as a user who pastes them; return what is printed."""
    lines = f'clinit() {{ "{sys.executable}" -m clinit "$@"; }}\n{text}\n'
    variables = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-e"], cwd=folder, input=lines, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ticked_photographs_with_wrong_labels_are_left_out_and_the_model_gets_better(
    tmp_path: Path, tiny_onnx: Any
) -> None:
    rng, planted = np.random.default_rng(0), set[str]()
    colours = {"it's red": (200, 40, 40), "green": (40, 190, 60), "blue": (50, 60, 200)}
    for label, colour in colours.items():
        for number in range(40):
            wrong = number < 2  # 5 %
            name = next(each for each in colours if each != label) if wrong else label
            path = tmp_path / "photos" / name / f"{label} {number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = rng.integers(-40, 40, (40, 36, 3))
            Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(path)
            planted |= {f"{name}/{path.name}"} if wrong else set()
    out = f"{shlex.quote(str(tiny_onnx.path))} photos --out new --html new.html --json"
    before, dropped = json.loads(clinit(tmp_path, f"clinit add {out}")), min(planted)
    script = ticked(tmp_path / "new.html", "May not belong to their class", dropped)
    after = json.loads(clinit(tmp_path, script))
    listed = {*(tmp_path / "without.txt").read_text(encoding="utf-8").splitlines()}
    assert dropped in listed
    assert not listed & (planted - {dropped}), "each has its own choice"
    for each in planted - {dropped}:
        label = next(name for name in colours if name in each.partition("/")[2])
        assert (tmp_path / "photos" / label / each.replace("/", "-")).exists()
    assert (before["images"], after["images"]) == (120, 120 - len(listed))
    rights = [each["accuracy"]["new"] for each in (before, after)]
    assert rights[0]["correct"] / rights[0]["total"] < rights[1]["correct"] / rights[1]["total"]
    clinit(tmp_path, "clinit model show new --html shown.html")
    assert dropped in (tmp_path / "shown.html").read_text(encoding="utf-8"), "it stays left out"
