import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

import clinit
from clinit.cli.add import accuracy_in_words, add, remember
from clinit.cli.model import remove, rename, show
from clinit.errors import CacheError, ManifestError, ModelError
from clinit.extract.cache.head import Head, Top1
from clinit.extract.work.run import ExtractConfig
from clinit.files.lock import claim_folder
from clinit.headtrain.model.edit import open_model
from clinit.headtrain.model.export import export_run
from clinit.headtrain.model.memory import read_memory
from clinit.headtrain.model.model_file import read_facts

app = typer.Typer()
for command in (add, remember, remove, rename, show):
    app.command()(command)


def invoke(*arguments: object, width: int = 120) -> Result:
    texts = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, texts, env={"COLUMNS": str(width)})


def done(*arguments: object, width: int = 120) -> str:
    result = invoke(*arguments, width=width)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return " ".join(result.output.split())


def refused(kind: type[Exception], *arguments: object) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, kind), (result.output, result.exception)
    return f"{result.exception} | {getattr(result.exception, 'remedy', '')}"


def draw(root: Path, classes: str, count: int, start: int = 0) -> Path:
    """Write images of one colour and some noise for each class."""
    for name in classes:
        colour = np.random.default_rng(ord(name)).integers(60, 196, 3)
        folder = root / name
        folder.mkdir(parents=True)
        for number in range(start, start + count):
            noise = np.random.default_rng(number).integers(-50, 50, (36, 40, 3))
            Image.fromarray((colour + noise).astype(np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def model(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a run: a, b, c of its base, d and e of its tasks; not to be changed."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_run(tiny_run, folder, remembers=False)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images of f and of g."""
    return draw(tmp_path_factory.mktemp("photographs") / "new", "fg", 8)


@pytest.fixture(scope="module")
def remembering(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, once it has seen images of all of its classes."""
    folder = tmp_path_factory.mktemp("remembering")
    draw(folder / "images", "abcde", 6, start=100)
    done("remember", model, folder / "images", "--out", folder / "model", "--device", "cpu")
    return folder / "model"


@pytest.fixture(scope="module")
def grown(
    remembering: Path, images: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """The remembering model with f and g, and what the command printed."""
    out = tmp_path_factory.mktemp("grown") / "model"
    return out, done("add", remembering, images, "--out", out, "--keep", 2, "--device", "cpu")


def head_of(folder: Path) -> Head:
    return open_model(folder, device="cpu").head


def test_added_classes_have_rows_and_names_and_the_old_rows_stay(
    remembering: Path, grown: tuple[Path, str]
) -> None:
    out, printed = grown
    before, after = head_of(remembering), head_of(out)
    assert after.class_names == tuple("abcdefg")
    np.testing.assert_array_equal(after.weight[:5], before.weight)
    np.testing.assert_array_equal(after.bias[:5], before.bias)
    assert printed.startswith("2 classes added: convnextv2_atto knows 7 classes now")
    assert "Images: 12 to learn from, 4 kept aside; their features are at" in printed
    assert "rows drawn from the statistics of old classes" in printed
    assert "old classes 5 " in printed  # one of six images of each
    assert f"clinit predict {out} IMAGE…" in printed


def test_the_new_model_says_what_came_when_and_from_what(
    grown: tuple[Path, str], images: Path, remembering: Path
) -> None:
    facts = read_facts(grown[0] / "model.safetensors")
    assert facts.tasks == (0, 0, 0, 1, 2, 3, 3)
    assert [change.action for change in facts.history] == ["run", "remember", "add"]
    change = facts.history[-1]
    assert (change.classes, change.task) == (("f", "g"), 3)
    assert change.images == {"f": 6, "g": 6}
    assert change.data["images"] == str(images)
    assert change.data["model"] == str(remembering)
    assert len(change.data["train_manifest"]) == 64
    assert change.accuracy["new"]["total"] == 4
    assert change.accuracy["old"]["total"] == 5
    printed = done("show", grown[0])
    assert "base, 3 classes: a, b, c" in printed
    assert "task 3, 2 classes: f, g" in printed
    told = json.loads(invoke("show", grown[0], "--json").stdout)
    assert told["classes"][-1] == {"class": "g", "task": 3}
    assert told["memory"]["classes"] == 7
    assert told["memory"]["exact"] is True


def test_the_old_model_is_not_touched(model: Path, images: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    done("add", model, images, "--out", tmp_path / "new", "--device", "cpu")
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_a_model_that_was_added_to_is_added_to_again(
    grown: tuple[Path, str], tmp_path: Path
) -> None:
    more = draw(tmp_path / "more", "hi", 6)
    printed = done("add", grown[0], more, "--out", tmp_path / "out", "--device", "cpu")
    assert "real rows" not in printed  # two of f are fewer than would be drawn of it
    printed = done(
        *("add", grown[0], more, "--out", tmp_path / "kept", "--old-rows", "kept"),
        *("--features", tmp_path / "out-features", "--device", "cpu"),
    )
    assert "4 real rows that the model keeps" in printed  # two of f, two of g
    memory = read_memory(tmp_path / "out" / "memory.safetensors")
    assert memory.class_names == tuple("abcdefghi")
    assert memory.counts.tolist() == [5, 5, 5, 5, 5, 6, 6, 5, 5]
    assert memory.held_out.counts().tolist() == [1, 1, 1, 1, 1, 2, 2, 1, 1]
    assert read_facts(tmp_path / "out" / "model.safetensors").tasks[-2:] == (4, 4)


def test_training_moves_the_old_rows_too(remembering: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "trained"
    done("add", remembering, images, "--out", out, "--iterations", 3, "--device", "cpu")
    before, after = head_of(remembering), head_of(out)
    assert (before.weight != after.weight[:5]).any(axis=1).all()


def test_a_class_that_the_model_has_is_replaced_in_its_own_row(
    grown: tuple[Path, str], tmp_path: Path
) -> None:
    again = draw(tmp_path / "again", "bh", 6, start=50)
    out = tmp_path / "out"
    message = refused(ModelError, "add", grown[0], again, "--out", out, "--device", "cpu")
    assert "the model has 1 of these classes already (b)" in message
    assert "`--replace`" in message
    assert not out.exists()
    assert not (tmp_path / "out-features").exists()
    printed = done("add", grown[0], again, "--out", out, "--replace", "--device", "cpu")
    assert printed.startswith("1 class replaced, 1 class added: ")
    before, after = head_of(grown[0]), head_of(out)
    assert after.class_names == tuple("abcdefgh")
    others = [0, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(after.weight[others], before.weight[others])
    assert (after.weight[1] != before.weight[1]).any()
    facts = read_facts(out / "model.safetensors")
    assert facts.tasks == (0, 4, 0, 1, 2, 3, 3, 4)
    assert facts.history[-1].action == "replace"
    memory = read_memory(out / "memory.safetensors")
    assert memory.class_names == tuple("abcdefgh")
    assert memory.counts.tolist() == [5] * 5 + [6, 6, 5]


def test_classes_that_the_model_lacks_cannot_be_replaced(
    model: Path, images: Path, tmp_path: Path
) -> None:
    message = refused(ModelError, "add", model, images, "--out", tmp_path / "out", "--replace")
    assert "f, g" in message
    assert not (tmp_path / "out-features").exists()


def test_images_exchanged_for_others_of_their_size_have_no_features_yet(
    model: Path, images: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(images, tmp_path / "images"))
    arguments = ["add", model, own, "--features", tmp_path / "features", "--device", "cpu"]
    done(*arguments, "--out", tmp_path / "one")
    done(*arguments, "--out", tmp_path / "two")
    changed = own / "f" / "3.png"
    before = changed.stat()
    content = bytearray(changed.read_bytes())
    content[-20] ^= 1
    changed.write_bytes(content)
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    message = refused(CacheError, *arguments, "--out", tmp_path / "three")
    assert "(f/3.png)" in message
    assert not (tmp_path / "three").exists()


def test_bad_images_and_other_files_are_named_and_not_counted(
    model: Path, images: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(images, tmp_path / "images"))
    (own / "f" / "3.png").write_bytes(b"no image")
    (own / "g" / "9.heic").write_bytes(b"")
    printed = done("add", model, own, "--out", tmp_path / "out", "--device", "cpu")
    assert "1 of 16 images cannot be read and are left out (f/3.png: " in printed
    assert "g/9.heic" in printed
    assert "Images: 12 to learn from, 3 kept aside" in printed


def test_a_class_with_one_readable_image_has_a_single_image(model: Path, tmp_path: Path) -> None:
    own = draw(tmp_path / "images", "f", 2)
    (own / "f" / "0.png").write_bytes(b"no image")
    printed = done("add", model, own, "--out", tmp_path / "out", "--device", "cpu")
    assert "1 of 1 classes has a single image (f)" in printed


def test_discriminants_of_single_images_are_trained_or_refused(model: Path, tmp_path: Path) -> None:
    arguments = ["add", model, draw(tmp_path / "images", "fg", 1), "--init", "lda"]
    message = refused(ModelError, *arguments, "--out", tmp_path / "out", "--device", "cpu")
    assert "--iterations" in message
    done(*arguments, "--out", tmp_path / "out", "--iterations", 2, "--device", "cpu")


def test_a_lock_that_a_failed_command_has_left_is_no_obstacle(
    model: Path, images: Path, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError), claim_folder(tmp_path / "outer" / "out"):
        1 / 0  # noqa: B018
    for out in (tmp_path / "outer" / "out", tmp_path / "outer"):
        (tmp_path / "outer" / "out").mkdir(parents=True, exist_ok=True)
        (tmp_path / "outer" / "out" / ".lock").touch()
        done("add", model, images, "--out", out, "--device", "cpu")
        shutil.rmtree(tmp_path / "outer")


def test_classes_are_removed_with_what_is_remembered_of_them(
    grown: tuple[Path, str], tmp_path: Path
) -> None:
    printed = done("remove", grown[0], "b", "f", "--out", tmp_path / "out")
    assert "2 removed: convnextv2_atto knows 5 classes now" in printed
    assert "`clinit remember` computes it anew" in printed
    before, after = head_of(grown[0]), head_of(tmp_path / "out")
    assert after.class_names == tuple("acdeg")
    np.testing.assert_array_equal(after.weight, before.weight[[0, 2, 3, 4, 6]])
    memory = read_memory(tmp_path / "out" / "memory.safetensors")
    assert memory.class_names == tuple("acdeg")
    assert not memory.exact


def test_a_name_that_is_not_there_is_refused_with_similar_ones(
    grown: tuple[Path, str], tmp_path: Path
) -> None:
    done("rename", grown[0], "f=forest road", "--out", tmp_path / "named")
    message = refused(
        ModelError, "remove", tmp_path / "named", "forest_road", "--out", tmp_path / "out"
    )
    assert "no class forest_road; its classes of similar names: forest road" in message
    everything = [*"abcdeg", "forest road"]
    message = refused(
        ModelError, "remove", tmp_path / "named", *everything, "--out", tmp_path / "out"
    )
    assert "without these 7 classes the model has none" in message


def test_classes_are_renamed(grown: tuple[Path, str], tmp_path: Path) -> None:
    done("rename", grown[0], "a=b", "b=a", "g=[bold] grün", "--out", tmp_path / "out")
    before, after = head_of(grown[0]), head_of(tmp_path / "out")
    assert after.class_names == ("b", "a", "c", "d", "e", "f", "[bold] grün")
    np.testing.assert_array_equal(after.weight, before.weight)
    assert read_memory(tmp_path / "out" / "memory.safetensors").class_names == after.class_names
    message = refused(ModelError, "rename", grown[0], "a=c", "--out", tmp_path / "no")
    assert "two classes would have the same name (c)" in message


@pytest.mark.parametrize(("pair", "message"), [("ab", "expected OLD=NEW"), ("=b", "expected OLD=")])
def test_what_is_no_pair_of_names_is_refused(
    grown: tuple[Path, str], tmp_path: Path, pair: str, message: str
) -> None:
    result = invoke("rename", grown[0], pair, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output


def test_one_image_of_a_class_is_enough_and_is_told(remembering: Path, tmp_path: Path) -> None:
    single = draw(tmp_path / "single", "f", 1)
    printed = done("add", remembering, single, "--out", tmp_path / "out", "--device", "cpu")
    assert "1 of 1 classes has a single image (f): what is computed from it is a guess" in printed
    assert "1 class added" in printed
    assert "added classes 0 - -" in printed


@pytest.mark.parametrize(
    ("count", "share", "why"),
    [
        (4, 0.2, "no added class has the five images from which on some are kept aside"),
        (5, 0, "--hold-out 0 keeps no new image aside"),
    ],
)
def test_an_accuracy_that_is_not_measured_is_told(
    model: Path, tmp_path: Path, count: int, share: float, why: str
) -> None:
    few = draw(tmp_path / "few", "f", count)
    out = ("--out", tmp_path / "out", "--hold-out", share, "--device", "cpu")
    printed = done("add", model, few, *out)
    assert "added classes 0 - -" in printed
    told = "accuracy on the added classes was not measured; a folder val measures it"
    assert f"Note: {why}: {told}" in printed
    draw(tmp_path / "both" / "train", "g", count)
    draw(tmp_path / "both" / "val", "g", 1, start=50)
    printed = done("add", model, tmp_path / "both", *out[2:], "--out", tmp_path / "measured")
    assert "was not measured" not in printed
    assert "added classes 1 - " in printed


@pytest.mark.parametrize("init", ["random", "zero"])
def test_rows_that_recognise_nothing_are_warned_of(
    model: Path, images: Path, tmp_path: Path, init: str
) -> None:
    told = f"{init} rows that are not trained recognise nothing: leave out `--init`, or train"
    options = ("--init", init, "--features", tmp_path / "features", "--device", "cpu")
    assert told in done("add", model, images, "--out", tmp_path / "one", *options)
    trained = done("add", model, images, "--out", tmp_path / "two", "--iterations", 1, *options)
    assert "recognise nothing" not in trained


def test_few_images_are_counted_and_said_to_be_too_few(grown: tuple[Path, str]) -> None:
    printed = grown[1]
    assert re.search(r"added classes 4 - \d of 4 ", printed)
    assert "Note: 4 images of added classes are too few to tell how well they are" in printed
    kept = "Held-out images of old classes: features that the model keeps aside, at most 1 per"
    assert kept in printed


def test_shares_of_many_images_are_in_percent() -> None:
    assert accuracy_in_words(Top1(15, 29)) == "15 of 29"
    assert accuracy_in_words(Top1(15, 30)) == "50.00 %"
    assert accuracy_in_words(Top1(0, 0)) == "-"


def test_a_model_behind_the_images_is_asked_about(
    model: Path, images: Path, tmp_path: Path
) -> None:
    message = refused(ModelError, "add", images, model, "--out", tmp_path / "out")
    assert message == (
        f"{images} is not a model, but {model} is one: are they swapped? |"
        f" Give the model first: {model} {images}"
    )


def test_a_network_of_timm_is_a_model_too(tiny_weights: Path, images: Path, tmp_path: Path) -> None:
    network = [
        *("--backbone", "convnextv2_atto", "--weights", tiny_weights),
        *("--model-arg", "depths=(1, 1, 1, 1)", "--model-arg", "dims=(4, 8, 8, 12)"),
        *("--input-size", 32, "--device", "cpu"),
    ]
    old = draw(tmp_path / "old", "abc", 6)
    done("remember", old, "--out", tmp_path / "remembers", *network)
    facts = read_facts(tmp_path / "remembers" / "model.safetensors")
    assert (facts.class_names, facts.tasks) == (("a", "b", "c"), (0, 0, 0))
    printed = done("add", images, "--out", tmp_path / "out", *network)
    assert "rows drawn from what the head says of old classes" in printed
    assert "no held-out image of an old class is known" in printed
    assert head_of(tmp_path / "out").class_names == tuple("abcfg")


def test_features_of_a_cache_stand_for_old_images(
    model: Path, tiny_run: Path, images: Path, tmp_path: Path
) -> None:
    cache = tiny_run.parent / "caches" / "base"
    printed = done(
        "add", model, images, "--out", tmp_path / "out", "--old", cache, "--device", "cpu"
    )
    assert "18 real rows of the cache" in printed
    assert "old classes 12 " in printed
    memory = read_memory(tmp_path / "out" / "memory.safetensors")
    assert memory.counts.tolist() == [6, 6, 6, 0, 0, 6, 6]


def test_the_cache_of_another_network_is_refused(
    tiny_run: Path, images: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    network = [
        *("--backbone", "convnextv2_atto", "--weights", tiny_weights, "--input-size", 32),
        *("--model-arg", "depths=(1, 1, 1, 1)", "--model-arg", "dims=(4, 8, 8, 12)"),
    ]
    cache = tiny_run.parent / "caches" / "base"
    message = refused(
        ModelError,
        *("add", images, "--out", tmp_path / "out", "--old", cache, "--device", "cpu", *network),
    )
    assert "are not of the network of convnextv2_atto: they differ in weights" in message


def test_images_of_unknown_classes_cannot_be_remembered(
    model: Path, images: Path, tmp_path: Path
) -> None:
    message = refused(ModelError, "remember", model, images, "--out", tmp_path / "out")
    assert "the model has no class of 2 of these names (f, g)" in message
    assert "`clinit add MODEL IMAGES --out NEW`" in message


def test_remembering_more_classes_keeps_what_was_remembered(
    remembering: Path, tmp_path: Path
) -> None:
    again = draw(tmp_path / "again", "cd", 10, start=200)
    printed = done("remember", remembering, again, "--out", tmp_path / "out", "--device", "cpu")
    assert "2 of 5 classes remembered, of 16 images" in printed
    assert "3 others as they were remembered before" in printed
    before = read_memory(remembering / "memory.safetensors")
    after = read_memory(tmp_path / "out" / "memory.safetensors")
    assert after.class_names == before.class_names
    assert after.counts.tolist() == [5, 5, 8, 8, 5]
    np.testing.assert_array_equal(after.means[[0, 1, 4]], before.means[[0, 1, 4]])
    assert (after.means[2:4] != before.means[2:4]).any()


def test_given_rows_that_the_model_holds_out_are_not_trained_on(
    model: Path, images: Path, tmp_path: Path
) -> None:
    old = draw(tmp_path / "old", "abcde", 10, start=300)
    done("remember", model, old, "--out", tmp_path / "remembers", "--device", "cpu")
    features = tmp_path / "remembers-features"
    printed = done(
        *("add", tmp_path / "remembers", images, "--out", tmp_path / "out", "--old", features),
        *("--device", "cpu"),
    )
    assert "40 real rows of the cache" in printed  # of 50, ten are held out
    assert "old classes 10 " in printed
    memory = read_memory(tmp_path / "out" / "memory.safetensors")
    assert memory.counts.tolist() == [8] * 5 + [6, 6]
    assert memory.held_out.counts().tolist() == [2] * 7


def test_the_same_images_are_held_out_in_other_company(
    grown: tuple[Path, str], images: Path, tmp_path: Path
) -> None:
    together = draw(tmp_path / "all", "ab", 6, start=100)
    shutil.copytree(images, together, dirs_exist_ok=True)
    options = ("--seed", 9, "--device", "cpu")
    done("remember", grown[0], together, "--out", tmp_path / "out", *options)
    before, after = (
        read_memory(folder / "memory.safetensors") for folder in (grown[0], tmp_path / "out")
    )
    for row in (5, 6):
        one, other = (
            each.held_out.features[each.held_out.labels == row].astype(np.float32)
            for each in (before, after)
        )
        np.testing.assert_allclose(one, other, atol=2e-2)


def test_what_was_removed_is_forgotten_once_all_is_remembered_anew(
    remembering: Path, tmp_path: Path
) -> None:
    done("remove", remembering, "e", "--out", tmp_path / "fewer")
    assert not read_memory(tmp_path / "fewer" / "memory.safetensors").exact
    again = draw(tmp_path / "again", "abcd", 6, start=100)
    options = ("--out", tmp_path / "out", "--device", "cpu")
    done("remember", tmp_path / "fewer", again, *options)
    assert read_memory(tmp_path / "out" / "memory.safetensors").exact


def test_variances_once_remembered_stay(remembering: Path, images: Path, tmp_path: Path) -> None:
    wide = ("--variances", "--device", "cpu")
    done("add", remembering, images, "--out", tmp_path / "one", *wide)
    more = draw(tmp_path / "more", "h", 6)
    done("add", tmp_path / "one", more, "--out", tmp_path / "two", "--device", "cpu")
    one, two = (read_memory(tmp_path / n / "memory.safetensors").variances for n in ("one", "two"))
    assert one is not None
    assert two is not None
    np.testing.assert_array_equal(two[:7], one)
    assert (two[7] > 0).all()
    shared = np.diag(read_memory(remembering / "memory.safetensors").covariance)
    np.testing.assert_allclose(one[:5], np.tile(shared, (5, 1)))


def test_a_cache_of_none_of_the_classes_is_refused(
    model: Path, images: Path, tmp_path: Path
) -> None:
    done("add", model, images, "--out", tmp_path / "one", "--device", "cpu")
    more = draw(tmp_path / "more", "h", 3)
    message = refused(
        ModelError,
        *("add", model, more, "--out", tmp_path / "out", "--old", tmp_path / "one-features"),
        *("--device", "cpu"),
    )
    assert "one-features (f, g) is a class of the model that stays" in message


@pytest.mark.parametrize("option", ["--features", "--out"])
@pytest.mark.parametrize("into", ["model", "images"])
def test_nothing_is_written_into_what_is_read(
    model: Path, images: Path, tmp_path: Path, option: str, into: str
) -> None:
    own = Path(shutil.copytree(model, tmp_path / "model"))
    shown = Path(shutil.copytree(images, tmp_path / "images"))
    before = sorted(tmp_path.rglob("*"))
    options = {"--out": tmp_path / "out"} | {option: tmp_path / into / "below"}
    flat = [each for pair in options.items() for each in pair]
    message = refused(ModelError, "add", own, shown, *flat, "--device", "cpu")
    assert f"{tmp_path / into / 'below'} lies in {tmp_path / into}, which is only read" in message
    if option == "--out":
        with pytest.raises(ModelError, match="which is only read"):
            clinit.add_classes(own, shown, options["--out"], device="cpu")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_task_number_is_used_once(grown: tuple[Path, str], tmp_path: Path) -> None:
    done("remove", grown[0], "f", "g", "--out", tmp_path / "fewer")
    more = draw(tmp_path / "more", "h", 3)
    done("add", tmp_path / "fewer", more, "--out", tmp_path / "out", "--device", "cpu")
    assert read_facts(tmp_path / "out" / "model.safetensors").tasks == (0, 0, 0, 1, 2, 4)


@pytest.mark.parametrize("name", [" ", "a\nb", "\x1b[31m"])
def test_names_that_cannot_be_read_are_refused(
    grown: tuple[Path, str], tmp_path: Path, name: str
) -> None:
    message = refused(ModelError, "rename", grown[0], f"a={name}", "--out", tmp_path / "out")
    assert "cannot be the name of a class" in message


def test_all_classes_cannot_be_replaced_at_once(model: Path, tmp_path: Path) -> None:
    everything = draw(tmp_path / "all", "abcde", 2)
    message = refused(ModelError, "add", model, everything, "--replace", "--out", tmp_path / "out")
    assert "the images are of all 5 classes of the model" in message


def test_a_file_remembers_nothing(model: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.safetensors"
    printed = done("add", model, images, "--out", out, "--device", "cpu")
    assert f"Model file at {out}" in printed
    assert "The model remembers" not in printed
    assert head_of(out).class_names == tuple("abcdefg")
    result = invoke("remember", model, images, "--out", tmp_path / "two.safetensors")
    assert "a file remembers nothing" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ("empty", ManifestError, "1 of 2 class folders in"),
        ("damaged", CacheError, "no image of 1 classes in"),
        ("nothing", ManifestError, "no train split of folder in"),
    ],
)
def test_folders_without_an_image_are_refused(
    model: Path, tmp_path: Path, content: str, kind: type[Exception], message: str
) -> None:
    root = tmp_path / "images"
    root.mkdir()
    if content != "nothing":
        draw(root, "f", 3)
        (root / "g").mkdir()
    if content == "damaged":
        (root / "g" / "0.png").write_bytes(b"no image")
    found = refused(kind, "add", model, root, "--out", tmp_path / "out", "--device", "cpu")
    assert message in found
    assert not (tmp_path / "out").exists()


def test_a_memory_of_another_backbone_is_refused(
    remembering: Path, tiny_weights: Path, images: Path, tmp_path: Path
) -> None:
    network = [
        *("--backbone", "convnextv2_atto", "--weights", tiny_weights, "--input-size", 32),
        *("--model-arg", "depths=(1, 1, 1, 1)", "--model-arg", "dims=(4, 8, 8, 12)"),
    ]
    old = draw(tmp_path / "old", "abc", 5)
    done("remember", old, "--out", tmp_path / "other", "--device", "cpu", *network)
    mixed = Path(shutil.copytree(tmp_path / "other", tmp_path / "mixed"))
    shutil.copy(remembering / "memory.safetensors", mixed / "memory.safetensors")
    message = refused(ModelError, "add", mixed, images, "--out", tmp_path / "out")
    assert "remembers 5 classes that are not the 3 of the model" in message
    done("remove", remembering, "d", "e", "--out", tmp_path / "fewer")
    shutil.copy(tmp_path / "fewer" / "memory.safetensors", mixed / "memory.safetensors")
    message = refused(ModelError, "add", mixed, images, "--out", tmp_path / "out")
    assert "of another backbone: it differs in body" in message


@pytest.mark.parametrize("target", ["nowhere", "memory.safetensors"])
def test_a_memory_behind_a_link_that_leads_nowhere_is_not_one_that_never_was(
    remembering: Path, images: Path, tmp_path: Path, target: str
) -> None:
    linked = Path(shutil.copytree(remembering, tmp_path / "model"))
    (linked / "memory.safetensors").unlink()
    (linked / "memory.safetensors").symlink_to(target)
    out = ("--out", tmp_path / "out")
    for words in (["show", linked], ["add", linked, images, *out], ["remove", linked, "a", *out]):
        message = refused(ModelError, *words)
        assert f"the link leads nowhere at {linked / 'memory.safetensors'} | Let it" in message
    assert not (tmp_path / "out").exists()


def test_a_memory_of_other_classes_is_refused_by_all_that_read_it(
    remembering: Path, tmp_path: Path
) -> None:
    named = tmp_path / "named"
    done("rename", remembering, "a=z", "--out", named)
    shutil.copy(remembering / "memory.safetensors", named)
    message = f"{named / 'memory.safetensors'} remembers 5 classes that are not the 5 of the model"
    assert message in refused(ModelError, "show", named)
    assert message in refused(ModelError, "remove", named, "b", "--out", tmp_path / "out")


def test_a_model_folder_may_hold_links(remembering: Path, images: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in remembering.iterdir():
        (linked / file.name).symlink_to(file)
    before = {path: path.read_bytes() for path in remembering.iterdir()}
    done("add", linked, images, "--out", tmp_path / "one", "--device", "cpu")
    done("add", remembering, images, "--out", tmp_path / "two", "--device", "cpu")
    one, two = (head_of(tmp_path / name) for name in ("one", "two"))
    np.testing.assert_array_equal(one.weight, two.weight)
    assert {path: path.read_bytes() for path in remembering.iterdir()} == before
    assert not any(path.is_symlink() for path in (tmp_path / "one").iterdir())


def test_the_arguments_must_fit_each_other(model: Path, images: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    for arguments, message in (
        ([images], "give MODEL and IMAGES; or --backbone and IMAGES alone"),
        ([model, images, "--backbone", "resnet18"], "give the folder of images alone"),
        ([model, images, "--mean", "0.5"], "--mean goes with --backbone; MODEL has its own"),
        ([model, images, "--transform", "paper"], "--transform goes with --backbone"),
    ):
        result = invoke("add", *arguments, *out)
        assert result.exit_code == 2
        assert message in " ".join(result.output.replace("│", " ").split())
    (tmp_path / "out").mkdir()
    message = refused(ModelError, "add", model, images, *out)
    assert "there is already something at" in message


def test_the_same_command_goes_on_with_the_features_that_are_there(
    model: Path, images: Path, tmp_path: Path
) -> None:
    features = ("--features", tmp_path / "features", "--device", "cpu")
    done("add", model, images, "--out", tmp_path / "one", *features)
    shards = {path: path.stat().st_mtime_ns for path in tmp_path.glob("features/*/*.h5")}
    assert shards
    done("add", model, images, "--out", tmp_path / "two", *features)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("features/*/*.h5")} == shards
    one, two = (head_of(tmp_path / name) for name in ("one", "two"))
    np.testing.assert_array_equal(one.weight, two.weight)


def test_python_gives_the_same_model(
    remembering: Path, grown: tuple[Path, str], images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    added = clinit.add_classes(remembering, images, out, {"keep": 2}, device="cpu")
    one, two = head_of(grown[0]), head_of(out)
    np.testing.assert_array_equal(one.weight, two.weight)
    np.testing.assert_array_equal(one.bias, two.bias)
    assert (added.old.total, added.new.total) == (5, 4)
    with pytest.raises(ModelError, match="there is already a model at"):
        clinit.add_classes(remembering, images, out, device="cpu")
    with pytest.raises(ValueError, match="iterations must be at least 0"):
        clinit.add_classes(remembering, images, tmp_path / "no", {"iterations": -1})


@pytest.mark.slow
def test_the_added_model_predicts_in_a_process_that_has_only_timm(
    grown: tuple[Path, str], images: Path
) -> None:
    code = f"""
import sys, timm, torch
from PIL import Image
model = timm.create_model("local-dir:{grown[0]}", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
with torch.inference_mode():
    found = [
        model.pretrained_cfg["label_names"][int(model(transform(Image.open(
            f"{images}/{{name}}/7.png"))[None]).argmax())] for name in "fg"
    ]
assert not any(name.startswith("clinit") for name in sys.modules)
print(*found)
"""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert set(ended.stdout.split()) <= set("abcdefg")


def test_the_table_fits_into_80_columns(remembering: Path, images: Path, tmp_path: Path) -> None:
    result = invoke(
        *("add", remembering, images, "--out", tmp_path / "out", "--device", "cpu"), width=80
    )
    lines = result.output.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("top-1 on held-out"))
    assert all(len(line) <= 80 for line in lines[start : start + 4])
    assert lines[start + 3].startswith("added classes")


def test_batches_are_as_large_as_those_of_an_extraction(tmp_path: Path) -> None:
    """The numbers are then those of `clinit.add_classes`, and its cache goes on with the other."""
    default = inspect.signature(add).parameters["batch_size"].default
    assert default is None
    assert default == inspect.signature(ExtractConfig).parameters["batch_size"].default
