"""Commands that look something up: what they print."""

from tests.cli.calls import call, checked


def test_a_known_data_set_is_shown_with_its_sizes_classes_and_layouts() -> None:
    names = checked(call("manifest", "show", "places365", "--classes")).split()
    assert len(names) == 365
    shown = checked(call("manifest", "show", "places365"))
    assert all(fact in shown for fact in (names[0], names[-1], "1,803,460", "Layouts"))
