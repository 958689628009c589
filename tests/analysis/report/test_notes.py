from clinit.analysis.report import ReportView
from clinit.analysis.runs import runs_of
from clinit.headtrain.protocol.record.format import RunRecord
from tests.analysis.conftest import MakeRun

START = {"random": 0.0, "class-mean": 0.5, "least-square": 0.7}


def test_notes_of_the_runs_are_said_once(make_run: MakeRun) -> None:
    note = "990 of 1,000 base classes have no validation image: [left out]"
    notes = runs_of([make_run(init, notes=[note]) for init in START]).notes
    assert notes.count(note) == 1
    assert len(set(notes)) == len(notes)


def test_a_terminal_has_two_notes_and_the_number_of_the_others(make_run: MakeRun) -> None:
    report = runs_of([make_run(init, notes=["one", "two", "three"]) for init in START])
    shown = [str(part) for part in report.parts(ReportView())]
    assert [each for each in shown if each.startswith("Note: ")] == ["Note: one", "Note: two"]
    assert "1 more note: .save_html(FILE)" in shown  # the runs were never written
    fallen = make_run("random", notes=["one"], accuracy=lambda _, i: 0.5 - 0.2 * (i > 0))
    assert runs_of([fallen]).notes[0].startswith("Training ends below its start in 1 of 1 run: ")


def test_a_missing_gain_has_its_reason(make_run: MakeRun) -> None:
    def reason(random: RunRecord, **settings: object) -> str:
        return runs_of([random, make_run("least-square", **settings)]).notes[0]

    alone = runs_of([make_run("random"), make_run("least-square", seed=1)]).notes
    assert any("`--init random`" in note for note in alone)
    # Random rows recognise nothing before the first step: that is not the reason.
    unstepped = make_run("random", iterations=0, accuracy=lambda task, i: -0.05)
    assert reason(unstepped, iterations=0) == (
        "No gain over random in tasks 1, 2, 3: there is no evaluation after the start."
    )
    assert "in task 2: there is no test image" in reason(make_run(untested_task=2), untested_task=2)
    some = make_run("random", accuracy=lambda task, i: 0.8 if task == 1 else -0.05)
    assert "in tasks 2, 3: random's best accuracy on the new classes is 0 %" in reason(some)


def record(make_run: MakeRun, init: str, *, add: float = 0.0, **settings: object) -> RunRecord:
    def learnt(task: int, iteration: int) -> float:
        return START[init] + add + (0.1 if iteration else 0.0)

    return make_run(init, accuracy=learnt, **settings)
