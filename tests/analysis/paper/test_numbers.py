import pytest

from clinit.analysis.paper.numbers import Place, Printed, paper_cells
from clinit.analysis.paper.tables import TABLES
from clinit.analysis.paper.text import HEADINGS


def test_all_434_numbers_of_the_paper_are_there() -> None:
    counts = {
        table.source: sum(map(len, paper_cells(table.source).values()))
        for table in TABLES
        if table.name != "figures"
    }
    assert counts == {
        "first_task": 22,
        "last_layer": 108,
        "top_layers": 126,
        "cl_methods": 24,
        "resnet18": 30,
        "data_orders": 15,
        "forward_transfer": 90,
        "cost": 15,
        "neural_collapse": 4,
    }
    assert sum(counts.values()) == 434


@pytest.mark.parametrize(
    ("source", "place", "metric", "expected"),
    [
        ("first_task", ("ce", 0, None, "least-square"), "acc_new", 48.37),
        ("last_layer", ("mse", 600, 24_000, "random"), "acc_all", 59.1),
        ("top_layers", ("mse", 1200, 192_000, "class-mean"), "acc_new", 55.25),
        ("resnet18", ("ce", 600, 24_000, "random"), "acc_new", 3.6),
        ("cost", ("ce", 1200, 192_000, "least-square"), "minutes_init", 13.0),
    ],
)
def test_numbers_are_those_of_the_paper(
    source: str, place: tuple[str, int, int | None, str], metric: str, expected: float
) -> None:
    printed = paper_cells(source)[Place("rehearsal", *place)][metric]
    assert printed == Printed(expected, None)


def test_numbers_of_methods_heads_and_orders_are_those_of_the_paper() -> None:
    methods = paper_cells("cl_methods")
    assert methods[Place("derpp", "ce", 600, 24_000, "random")]["acc_new"].value == 50.25
    assert methods[Place("ewc", "ce", 600, None, "least-square")]["acc_all"].value == 42.57
    orders = paper_cells("data_orders")[Place("rehearsal", "ce", 600, 24_000, "random")]
    assert orders["acc_new"] == Printed(49.34, 0.4)
    assert paper_cells("neural_collapse")[Place("", "ce", 0, None, "")]["nc2"].value == 0.93


def test_every_metric_has_a_heading_and_every_printed_one_is_shown() -> None:
    for table in TABLES:
        assert set(table.metrics) <= HEADINGS.keys()
        printed = {name for cells in paper_cells(table.source).values() for name in cells}
        assert printed <= set(table.metrics)
        assert set(table.effects) <= set(table.metrics)
