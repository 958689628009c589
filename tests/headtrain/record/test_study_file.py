from __future__ import annotations

import tomllib
from typing import Any

import pytest

from clinit.headtrain.record.format import study_toml
from clinit.headtrain.study.rules import settings_of
from clinit.headtrain.study.study import Study


@pytest.mark.parametrize(
    ("top", "settings"),
    [
        (False, {}),
        (False, {"method": "naive", "init_rows": "buffer", "buffer_per_class": 3, "lam": "auto"}),
        (False, {"method": "lda", "weighting": "sample"}),
        (True, {"method": "ewc", "ewc_mode": "online", "ewc_gamma": 0.5, "lr": 1e-300}),
        (True, {"method": "derpp", "derpp_teacher": "stored", "compile": True, "probe": False}),
        (True, {"full_rank": True, "layer_decay": 1.0}),
    ],
)
def test_the_file_says_the_study_again(top: bool, settings: dict[str, Any]) -> None:
    study = Study.of(settings, top=top).resolved()
    (section,) = tomllib.loads(study_toml(study)).values()
    by_key = {field.key: name for name, field in settings_of(top=top).items()}
    again = Study.of({by_key[key]: value for key, value in section.items()}, top=top)
    assert again.resolved() == study


def test_a_class_order_is_told_in_a_comment() -> None:
    text = study_toml(Study.of({"class_order": ("a", 'b"\n[x]')}).resolved())
    assert '# class order: "a", "b\\"\\n[x]"\n' in text
    assert list(tomllib.loads(text)) == ["train-head"]
