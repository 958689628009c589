from typing import Any

import pytest

from clinit.analysis.paper.numbers import MEASURES, PLACE, _numbers, paper_numbers
from clinit.analysis.paper.tables import TABLES, table_named


def test_all_434_numbers_of_the_paper_are_there() -> None:
    counts = {
        table.source: len(_numbers().filter(table=table.source))
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
        ("first_task", ("rehearsal", "ce", 0, None, "least-square"), "acc_new", 48.37),
        ("last_layer", ("rehearsal", "mse", 600, 24_000, "random"), "acc_all", 59.1),
        ("top_layers", ("rehearsal", "mse", 1200, 192_000, "class-mean"), "acc_new", 55.25),
        ("resnet18", ("rehearsal", "ce", 600, 24_000, "random"), "acc_new", 3.6),
        ("cost", ("rehearsal", "ce", 1200, 192_000, "least-square"), "minutes_init", 13.0),
        ("cl_methods", ("derpp", "ce", 600, 24_000, "random"), "acc_new", 50.25),
        ("cl_methods", ("ewc", "ce", 600, None, "least-square"), "acc_all", 42.57),
        ("neural_collapse", ("", "ce", 0, None, ""), "nc2", 0.93),
        ("data_orders", ("rehearsal", "ce", 600, 24_000, "random"), "acc_new", (49.34, 0.4)),
    ],
)
def test_numbers_are_those_of_the_paper(
    source: str, place: tuple[Any, ...], metric: str, expected: Any
) -> None:
    found = paper_numbers(table_named(source.replace("_", "-"))).filter(metric=metric)
    (line,) = (row for row in found.to_dicts() if tuple(row[name] for name in PLACE) == place)
    own = expected if isinstance(expected, tuple) else (expected, None)
    assert (line["paper"], line["paper_deviation"]) == own


def test_every_metric_has_a_heading_and_every_printed_one_is_shown() -> None:
    for table in TABLES:
        assert set(table.metrics) <= MEASURES.keys()
        assert {*paper_numbers(table)["metric"]} <= set(table.metrics)
        assert set(table.effects) <= set(table.metrics)
