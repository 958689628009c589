"""What a ticked photograph becomes; `tests/cli/test_photographs.py` ticks it in a browser."""

from pathlib import Path
from typing import Any

from clinit.analysis.page.photographs import SCORES, Shot, _figure, _of_audit, _page


def test_a_photograph_moves_to_the_folder_of_another_class_if_folders_name_classes() -> None:
    assert Shot("val/ant/1.jpg", nearest="bee").to == "val/bee"
    assert Shot("1.jpg", nearest="bee").to == ""
    assert 'class="to"' not in _figure(Path("photographs"), Shot("1.jpg", nearest="bee"))
    assert Shot("ant/1.jpg").to == ""
    assert 'id="chosen"' not in _page("ants", {}, {}, Path("photographs")), "nothing to tick"


def test_a_copy_of_a_photograph_of_the_other_class_is_not_moved_there_unasked() -> None:
    found = {"class": "ant", "nearest": "bee", "scores": [1, 0]}
    # With a probability, the other class is one of the old model.
    misfits = [{"image": f"ant/{n}.jpg", "unit": u, **found} for n in (1, 2) for u in SCORES]
    copies = {"where": "across classes", "images": ["ant/1.jpg", "bee/9.jpg"], "given": 2}
    audit: dict[str, Any] = {"misfits": misfits, "alike": [], "repeated": [copies], "odd": []}
    shots, repeats, _ = _of_audit(audit).values()
    boxes = [_figure(Path("photographs"), each).partition('class="to"')[2] for each in shots]
    assert ["checked" in box for box in boxes] == [False, False, True, False]
    assert [each.words for each in repeats] == ["like bee/9.jpg", "kept: the others repeat it"]
    assert shots[0] == repeats[0]
    assert ['class="chosen"' in _figure(Path(), each) for each in repeats] == [True, False]
