import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from clinit.headtrain.model.export import export_run
from clinit.headtrain.model.folder import card
from clinit.headtrain.model.model_file import Change, ModelFacts, read_facts
from clinit.headtrain.record.format import read_record

HOSTILE = (
    "</details>\n---\nlicense: mit | [x](http://evil) `<script>` **b** ![i](y) 🦜 \u202e\udcff"
)


@pytest.fixture(scope="module")
def folder(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_run(tiny_run, tmp_path_factory.mktemp("model") / "scenes").path


@pytest.fixture(scope="module")
def facts(folder: Path) -> ModelFacts:
    return read_facts(folder / "model.safetensors")


def a_change(action: str = "add", **fields: object) -> Change:
    plain: dict[str, object] = {
        "action": action,
        "date": "2026-01-02T03:04:05+00:00",
        "clinit": "0.1.0",
        "task": 3,
        "classes": ("d",),
        "images": {"d": 20},
        "data": {},
        "settings": {},
        "accuracy": {"all": {"correct": 3, "total": 4}},
    }
    return Change(**{**plain, **fields})  # type: ignore[arg-type]


def test_the_hub_reads_the_card_and_no_licence_is_claimed(folder: Path) -> None:
    found = ModelCard.load(folder / "README.md")
    assert found.data.to_dict() == {
        "library_name": "timm",
        "metrics": ["accuracy"],
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "timm", "clinit", "continual-learning"],
    }
    text = (folder / "README.md").read_text()
    head = text.split("---")[1]
    assert "# license: to be stated by the owner of this model" in head
    assert "Not stated yet. The owner of this model states it here" in text


def test_it_tells_classes_accuracy_data_and_command(
    folder: Path, tiny_run: Path, facts: ModelFacts
) -> None:
    text = (folder / "README.md").read_text()
    info = read_record(tiny_run).info
    assert "# convnextv2\\_atto with 5 classes" in text
    assert "3 classes of the pretrained head and 2 that arrived later" in text
    for task in (1, 2):
        (name,) = (n for n, t in zip(facts.class_names, facts.tasks, strict=True) if t == task)
        assert f"* 1 arrived in task {task}: {name}" in text
    for group, counts in facts.history[0].accuracy.items():
        percent = 100 * counts["correct"] / counts["total"]
        assert f"| {group} | {counts['correct']} | {counts['total']} | {percent:.2f} % |" in text
    assert list(facts.history[0].accuracy) == ["old", "new", "all", "task 1", "task 2"]
    assert info["new"]["manifest_digest"] in text
    assert shlex.join(info["command"]) in text
    assert f"| {info['started']} | trained | - | 2 | 12 |" in text


def test_the_python_of_the_card_runs(
    folder: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    image = next((tiny_run.parent / "new" / "val").rglob("*.png"))
    exec(code.replace("FOLDER", str(folder)).replace("photo.jpg", str(image)), {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sorted(name for name, _ in lines) == ["a", "b", "c", "d", "e"]
    assert sum(float(score) for _, score in lines) == pytest.approx(1, abs=1e-4)


def test_text_from_data_is_shown_letter_by_letter(facts: ModelFacts) -> None:
    change = a_change(
        classes=(HOSTILE,),
        images={HOSTILE: 3},
        date="| x |",
        data={"root": HOSTILE + "\n```\n# gone", "command": ["```", HOSTILE]},
        settings={"x": "```\n"},
    )
    names = (HOSTILE, *facts.class_names[1:4], HOSTILE)
    text = card(replace(facts, class_names=names, history=(change,)))
    assert "license" not in ModelCard(text).data.to_dict()  # type: ignore[no-untyped-call]
    blocks = re.findall(r"^```(\w*)\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    assert [language for language, _ in blocks] == ["python", "", "", "json"]
    told = json.loads(blocks[-1][1].replace("\\u202e", "").replace("\\xff", ""))
    assert list(told["classes"].values()) == [3]
    assert told["settings"] == {"x": "```\n"}
    outside = re.sub(r"^```\w*\n.*?\n```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for mark in ("<script>", "\n---\nlicense", "[x](", "**b**", "![", "http://", "\u202e", "`<"):
        assert mark not in outside
    assert outside.count("</details>") == outside.count("<details><summary>") == 2
    assert "🦜" in outside
    assert r"\</details\>\\x0a---\\x0alicense: mit \| \[x\](http\://evil)" in outside
    assert text.encode()  # no half character


def test_long_lists_of_classes_are_folded(facts: ModelFacts) -> None:
    names = tuple(f"class {number}" for number in range(400))
    tasks = (0,) * 100 + (1,) * 60 + (2,) * 240
    text = card(replace(facts, class_names=names, tasks=tasks))
    assert "<details><summary>100 of the pretrained head</summary>\n\nclass 0, class 1," in text
    assert "* 60 arrived in task 1: class 100, class 101," in text
    assert "<details><summary>240 arrived in task 2</summary>\n\nclass 160," in text


def test_the_accuracy_is_that_of_the_last_change_that_measured_one(facts: ModelFacts) -> None:
    later = (a_change("add"), a_change("rename", accuracy={}, task=None, images={}))
    text = card(replace(facts, history=(*facts.history, *later)))
    assert "Top-1 when the classes were last added (2026-01-02T03:04:05+00:00):" in text
    assert "| all | 3 | 4 | 75.00 % |" in text
    assert "| 2026-01-02T03:04:05+00:00 | renamed | - | 1 | - | 0.1.0 |" in text
    assert "<summary>3: what was renamed, and how</summary>" in text


def test_what_is_not_known_is_said(facts: ModelFacts) -> None:
    text = card(replace(facts, history=()))
    assert "Not known: no test image was evaluated." in text
    assert "exported by a version of clinit that kept none" in text
    empty = a_change(accuracy={"new": {"correct": 0, "total": 0}})
    assert "no test image was evaluated" in card(replace(facts, history=(empty,)))


def test_scores_of_a_solved_head_are_no_probabilities(facts: ModelFacts) -> None:
    assert "order of the classes counts" not in card(facts)
    text = card(replace(facts, record={"config": {"method": "ridge"}}))
    assert "The head was solved (ridge), not with cross entropy: the order of the classes" in text
