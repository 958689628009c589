"""A mistake on the command line is told in words of clinit, before PyTorch is loaded."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clinit.cli.main import main

TRAIN = ("train-head", "--base", "absent", "--new", "absent", "--out", "o")


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr("sys.argv", ["clinit", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code in (1, 2)
    return " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().err).split())


MISTAKES = {
    ("--method", "rehersal"): "--method must be rehearsal, naive, joint, ncm, ridge, lda, slda,"
    " simplecil, fecam, klda or ranpac, got 'rehersal'. Did you mean rehearsal?",
    ("--init", "Least_Squares"): "got 'Least_Squares'. Did you mean least-square?",
    ("--mix", "zebra"): "--mix must be text or sgm, got 'zebra' ",
    ("--tasks", "many"): "--tasks takes an integer, got 'many'",
    ("--tasks", "0"): "--tasks must be at least 1, got 0",
    ("--rank", "4"): "There is no option --rank.",
    ("--itertions", "4"): "There is no option --itertions. Did you mean --iterations?",
    ("--lr", "-1"): "--lr must be positive, got -1.0",
    ("--lambda", "much"): "--lambda takes a number or 'auto' or 'held-out', got 'much'",
    ("--buffer=5", "--buffer-per-class=5"): "--buffer and --buffer-per-class exclude each other",
    ("--tasks", "0", "--tasks", "4"): "Error: no feature cache at absent",  # the last one wins
    ("--init", "random", "--init", "lda"): "Error: no feature cache at absent",
    ("--head", "h.safetensors"): "Error: no feature cache at absent",
}


def test_a_missing_argument_of_two_words_is_named_as_in_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert " [MODEL] IMAGES is missing." in told(monkeypatch, capsys, "add")


def test_the_split_of_a_cache_that_results_are_reported_on_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("cache", "export", "cache", "out", "--split", "test")
    assert (
        "--split must be train or val, got 'test'. Results are reported on the split val, whatever"
        " its images are called" in told(monkeypatch, capsys, *words)
    )


def test_a_setting_given_to_a_sweep_as_an_option_is_told_how_it_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = told(monkeypatch, capsys, "sweep", "--weight-decay", "0")
    assert (
        "There is no option --weight-decay: what runs are to have is written weight_decay=VALUE,"
        " or weight_decay=VALUE,VALUE for several." in message
    )


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_told_in_plain_words(
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    message = told(monkeypatch, capsys, *TRAIN, *words)
    assert MISTAKES[words] in f"{message} "
    assert "Value error" not in message
    assert "Input should" not in message


WORDS = {
    ("cache", "shwo"): "There is no command shwo. Did you mean show?",
    ("frobnicate",): "There is no command frobnicate. ",
    ("train-head", "--base", "x"): "--new FOLDER is missing. Feature cache of the new classes.",
    ("report",): "RUN is missing. Run records, or folders that hold some.",
    ("report", "r", "--plot"): "--plot is given without its value.",
    ("report", "r", "--output"): "There is no option --output. ",
    ("add", "absent", "absent", "--out=o"): "Error: no model file at absent ",
    (
        "remember",
        ".",
        "absent",
        "--out=o",
    ): "Error: no folder of images at absent Give",
    ("demo", "here", "there"): "Too many words at the end: here there",
}


@pytest.mark.parametrize("words", WORDS)
def test_missing_and_unknown_words_are_told_in_plain_words(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert WORDS[words] in f"{told(monkeypatch, capsys, *words)} "


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("predict",), "predict [OPTIONS] MODEL IMAGE... Try"),
        (("export",), "export --out PATH [OPTIONS] RUN Try"),
        (("cache", "shwo"), "cache [OPTIONS] COMMAND ... Try"),
    ],
)
def test_an_error_has_the_usage_line_of_the_help(
    words: tuple[str, ...],
    usage: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert f"clinit {usage}" in told(monkeypatch, capsys, *words)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("add", "m", "i", "--out", "o", "--init", "random", "--init", "lda"), "--init"),
        (("remember", "m", "i", "--out", "o", "--seed", "1", "--seed", "2"), "--seed"),
        (("align", "c", "--out", "o", "--seed", "1", "--seed", "2"), "--seed"),
        (("probe", "c", "--seed", "1", "--seed", "1"), "--seed"),
    ],
)
def test_a_second_value_where_one_is_taken_is_not_dropped(
    words: tuple[str, ...],
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = f"{option} is given more than once; it takes one value here"
    assert expected in told(monkeypatch, capsys, *words)


@pytest.mark.parametrize(
    ("option", "text", "question"),
    [
        ("--mean", "127", "Was 127/255 meant, which is 0.498?"),
        ("--std", "58,57,57", "Was 58/255,57/255,57/255 meant, which is 0.227,0.224,0.224?"),
        ("--mean", "-0.1", "--mean must not be negative, got '-0.1'"),
    ],
)
def test_means_of_pixels_that_were_not_divided_are_asked_for(
    option: str,
    text: str,
    question: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("extract", "--dataset=digits", "--root=absent", "--out=o", f"{option}={text}")
    assert question in told(monkeypatch, capsys, *words)


def test_a_data_set_and_a_table_of_nearly_that_name_are_proposed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("extract", "--dataset=imagnet1k", "--root=absent", "--out=o")
    assert "Did you mean imagenet1k?" in told(monkeypatch, capsys, *words)
    assert "Did you mean last-layer?" in told(monkeypatch, capsys, "reproduce", "last-laier")


EARLY = (
    (*TRAIN, "--method=rehersal"),
    (*TRAIN, "--tasks=0"),
    (*TRAIN, "--lr=-1"),
    TRAIN,
    ("train-top", "--base=absent", "--new=absent", "--out=o"),
    ("sweep", "--base=absent", "--new=absent", "--out=o", "itertions=3"),
    ("extract", "--dataset=imagnet", "--root=absent", "--out=o"),
    ("extract", "--dataset=folder", "--root=absent", "--out=o"),
    ("extract", "--dataset=folder", "--root=.", "--out=o", "--mean=127"),
    ("align", "absent", "--out=h.safetensors"),
    ("diagnose", "absent"),
    ("probe", "absent"),
    ("predict", "absent", "absent"),
    ("export", "absent", "--out=o"),
    ("add", "absent", "absent", "--out=o"),
    ("add", "--backbone=nope", "absent", "--out=o"),
    ("remember", "absent", "absent", "--out=o"),
    ("remember", ".", "absent", "--out=o"),
    ("remember", "--backbone=nope", "absent", "--out=o"),
    ("remove", "absent", "ant", "--out=o"),
    ("rename", "absent", "ant=bee", "--out=o"),
    ("model", "show", "absent"),
    ("rerun", "absent"),
    ("reproduce", "last-layer", "--base=absent", "--new=absent"),
    ("diagnose", "cache", "--head=absent"),
    ("align", "cache", "--out=file/h.safetensors"),
    ("train-head", "--base=cache", "--new=cache", "--out=file/o"),
    ("train-top", "--base=cache", "--new=cache", "--out=file/o"),
    ("sweep", "--base=cache", "--new=cache", "--out=file/o", "lr=0.1"),
    ("sweep", "--base=absent", "--new=absent", "--out=o", "--search=optuna", "lr=0.1..1:log"),
    ("export", "cache", "--out=file/o"),
    ("rerun", "cache", "--out=file/o"),
    ("remember", ".", ".", "--out=file/o"),
)
POLARS = (
    ("extract", "--manifest=absent.parquet", "--root=.", "--out=o", "--backbone=nope"),
    ("extract", "--dataset=folder", "--root=empty", "--out=o", "--backbone=nope"),
)
"""These read what is there, for which Polars is loaded."""


def test_mistakes_are_found_before_the_heavy_packages_are_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from clinit.cli.main import main\n"
        f"for words in {(*EARLY, *POLARS)!r}:\n"
        "    sys.argv = ['clinit', *words]\n"
        "    try: main()\n"
        "    except SystemExit as ended: assert ended.code in (1, 2), words\n"
        "    heavy = {'torch', 'timm', 'polars', 'h5py', 'scipy'} & set(sys.modules)\n"
        f"    read = {{'polars', 'h5py'}} if words in {POLARS!r} else set()\n"
        "    assert not heavy - read, (words, heavy)\n"
    )
    (tmp_path / "cache" / "train").mkdir(parents=True)
    (tmp_path / "cache" / "train" / "plan.json").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
