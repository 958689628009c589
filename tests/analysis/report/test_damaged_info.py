"""run.json with a field of another type, sealed again as its author could have written it."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clinit.analysis.report.report import load_report
from clinit.errors import RecordError
from clinit.files.documents import content_sha256
from clinit.headtrain.record.format import RunRecord

LACKING = object()
WRONG = (LACKING, None, -(10**30), "x", {"x": 1})


def places(value: object, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in a document, of lists the first one only."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1])  # type: ignore[index]
    for key, each in inside:
        yield (*above, key)
        if isinstance(each, dict | list):
            yield from places(each, (*above, key))


def changed(content: dict[str, Any], place: tuple[Any, ...], value: object) -> dict[str, Any]:
    content = copy.deepcopy(content)
    holder: Any = content
    for key in place[:-1]:
        holder = holder[key]
    if value is LACKING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return content


def refusal(runs: Path) -> str | None:
    """Read the runs and show them in every way; return the message if they are refused."""
    try:
        report = load_report([runs])
    except RecordError as error:
        return str(error)
    shown = (
        report.json(),
        report.csv(),
        report.csv(per_task=True),
        report.table(),
        report.task_table(),
        report.ranking(),
        report.diagnosis_table(per_task=True),
        report.is_ranked,
    )
    assert None not in shown
    return None


@pytest.mark.slow
def test_a_field_that_is_missing_or_of_another_type_never_ends_in_a_traceback(
    make_run: Callable[..., RunRecord], write_runs: Callable[..., Path]
) -> None:
    record = make_run(
        "least-square", tasks=1, iterations=2, every=1, class_order=["a"], buffer=None
    )
    kept = ("init", "loss", "lam", "tasks", "seed", "class_order", "buffer")
    record.info["config"] = {name: record.info["config"][name] for name in kept}
    task = record.info["tasks"][0]
    task["diagnosis"] = {"nc1": 0.5, "d_ls": 1.0, "library": "numpy"}
    task["forward_transfer"] = {"task": 2, "top1": 0.5}
    task["lambda_curve"] = {"lam": [0.1], "held_out_error": [None]}
    record.info["head"] = {"path": "head.safetensors", "digest": "a"}
    record.info["loss_sample_rows"] = 7
    beside = make_run("random", tasks=1, iterations=2, every=1)
    beside.info["tasks"][0]["diagnosis"] = {"library": "numpy"}
    runs = write_runs(record, beside)
    path = runs / record.info["id"] / "run.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    refused = 0
    for number, place in enumerate(places(content)):
        for value in WRONG[number % 2 :: 2]:
            wrong = changed(content, place, value)
            path.write_text(json.dumps({**wrong, "sha256": content_sha256(wrong)}))
            try:
                message = refusal(runs)
            except Exception as error:
                pytest.fail(f"{place} = {value!r} ends in {error!r}")
            if message is not None:
                refused += 1
                assert message.startswith(str(path.parent)), (place, value)
                assert "\n" not in message
    assert refused > 55
