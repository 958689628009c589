import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import clinit
from clinit.cli.frame.model_source import ONNX_FORM, next_to
from clinit.errors import CacheError, ManifestError, ModelError, StorageError
from clinit.extract.cache.head import Head, write_head
from clinit.extract.cache.read import open_split
from clinit.headtrain.model.export import export_model
from clinit.headtrain.model.memory import Memory, read_memory
from clinit.headtrain.model.model import load_model
from clinit.headtrain.model.storage import parent_of, read_facts
from tests.cli.calls import NETWORK, call, checked


def done(*words: object) -> str:
    return " ".join(checked(call(*words)).split())


def refused(kind: type[Exception], *words: object) -> str:
    result = call(*words)
    assert isinstance(result.exception, kind), (result.output, result.exception)
    return f"{result.exception} | {getattr(result.exception, 'remedy', '')}"


def draw(root: Path, classes: str, count: int, start: int = 0) -> Path:
    """Write images of one colour and some noise for each class."""
    for name in classes:
        colour, folder = np.random.default_rng(ord(name)).integers(60, 196, 3), root / name
        folder.mkdir(parents=True)
        for number in range(start, start + count):
            noise = np.random.default_rng(number).integers(-50, 50, (36, 40, 3))
            Image.fromarray((colour + noise).astype(np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def model(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a run: a, b, c of its base, d and e of its tasks; not to be changed."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_model(tiny_run, folder)
    (folder / "memory.safetensors").unlink()
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
    out = folder / "model"
    printed = done("remember", model, folder / "images", "--out", out, "--device", "cpu")
    assert printed.endswith(f"Next: clinit add {out} FOLDER")
    return folder / "model"


@pytest.fixture(scope="module")
def grown(
    remembering: Path, images: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """The remembering model with f and g, and what the command printed."""
    out = tmp_path_factory.mktemp("grown") / "model"
    return out, done("add", remembering, images, "--out", out, "--device", "cpu")


def head_of(folder: Path) -> Head:
    return load_model(folder, device="cpu").head


def old_rows(folder: Path) -> str:
    return str(read_facts(folder).history[-1].data["old_rows"])


def memory_of(folder: Path) -> Memory:
    return read_memory(folder / "memory.safetensors")


def test_added_classes_have_rows_and_names_and_the_old_rows_stay(
    remembering: Path, grown: tuple[Path, str], images: Path
) -> None:
    out, printed = grown
    before, after = head_of(remembering), head_of(out)
    assert after.class_names == tuple("abcdefg")
    # But for rounding: they are stored divided by the temperature.
    np.testing.assert_allclose(after.weight[:5], before.weight, rtol=2e-7)
    np.testing.assert_allclose(after.bias[:5], before.bias, rtol=2e-7)
    for part in (
        f"{out} knows 7 classes. Your 16 photographs, each tested without itself: ",
        "Old classes: of 5 photographs held out, ",  # one of six images of each
        f"Kept in {out}-features: ",
        f"Next: clinit predict {out} PHOTOGRAPH…",
    ):
        assert part in printed
    facts = read_facts(out / "model.safetensors")
    assert facts.tasks == (0, 0, 0, 1, 2, 3, 3)
    assert [change.action for change in facts.history] == ["run", "remember", "add"]
    change = facts.history[-1]
    assert (change.classes, change.task) == (("f", "g"), 3)
    assert change.data["images"] == str(images)
    assert len(change.data["train_manifest"]) == 64
    assert "synthetic features from class statistics" in change.data["old_rows"]
    lines = call("model", "show", out).stdout.replace(str(out), "model").splitlines()
    assert max(map(len, lines)) <= 80
    printed = done("model", "show", out)
    assert "base, 3 classes: a, b, c" in printed
    assert f"{change.date[:10]}, 2 classes: f, g" in printed
    told = json.loads(call("model", "show", out, "--json").stdout)
    assert told["classes"][-1] == {"class": "g", "task": 3}
    assert (told["memory"]["classes"], told["memory"]["exact"]) == (7, True)


def test_a_model_that_was_added_to_is_added_to_again(
    grown: tuple[Path, str], tmp_path: Path
) -> None:
    more, cpu = draw(tmp_path / "more", "hi", 6), ("--device", "cpu")
    done("add", grown[0], more, "--out", tmp_path / "out", *cpu)

    memory = memory_of(tmp_path / "out")
    assert memory.class_names == tuple("abcdefghi")
    assert memory.counts.tolist() == [5, 5, 5, 5, 5, 8, 8, 6, 6]
    assert memory.held_out.counts().tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert read_facts(tmp_path / "out" / "model.safetensors").tasks[-2:] == (4, 4)


def test_without_out_the_new_model_goes_next_to_its_parent(
    grown: tuple[Path, str], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = Path(shutil.copytree(grown[0], tmp_path / "flowers"))
    more, words = draw(tmp_path / "more", "h", 2), ("--device", "cpu")
    draw(more, "i", 1)
    printed = done("add", parent, more, *words)
    assert printed.startswith(f"Note: the new model goes to {tmp_path / 'flowers-2'}; ")
    assert "never tested: 1 class (i)" in printed
    draw(tmp_path / "later", "i", 1, start=1)
    shutil.move(tmp_path / "later" / "i" / "1.png", more / "i")
    printed = done("add", tmp_path / "flowers", more, *words)
    assert f"{tmp_path / 'flowers-3'} knows 9 classes" in printed
    assert "1 image new (in i); only new images are computed" in printed
    assert not (tmp_path / "flowers-3-features").exists()
    done("rename", tmp_path / "flowers-3", "a=b", "b=a", "h=[bold] grün")
    before, after = head_of(tmp_path / "flowers-3"), head_of(tmp_path / "flowers-4")
    assert after.class_names == (*"bacdefg", "[bold] grün", "i")
    assert memory_of(tmp_path / "flowers-4").class_names == after.class_names
    np.testing.assert_array_equal(after.weight, before.weight)
    facts = {name: read_facts(tmp_path / name) for name in ("flowers", "flowers-3", "flowers-4")}
    assert facts["flowers-3"].parents == {facts["flowers"].digest: str(parent)}
    assert facts["flowers-4"].parents == {facts["flowers-3"].digest: str(tmp_path / "flowers-3")}
    shutil.move(tmp_path / "flowers-3", tmp_path / "elsewhere")
    assert parent_of(tmp_path / "flowers-4")[0] is None
    assert parent_of(tmp_path / "elsewhere")[0] == parent
    shown = done("model", "show", tmp_path / "flowers-4")
    for name in ("flowers", "flowers-3"):
        assert f"{name} {facts[name].digest[:12]}" in shown
    monkeypatch.setattr("clinit.headtrain.model.storage.read_model", lambda *_, **__: 1 / 0)
    assert "no class nope" in refused(ModelError, "rename", parent, "nope=x")  # before it is read
    result = call("add", parent, images)
    assert "already classes of the model: 2 of 2" in str(result.exception)
    assert "goes to" not in result.output
    assert next_to(tmp_path / "resnet-50").name == "resnet-50-2"
    names = [next_to(tmp_path / "head.npz", form).name for form in ("", ONNX_FORM)]
    assert names == ["head-2.npz", "head-onnx"]
    monkeypatch.chdir(parent)
    assert next_to(Path()) == Path("../flowers-5")


def test_more_images_solve_rows_anew_and_two_models_become_one(
    remembering: Path, grown: tuple[Path, str], images: Path, tmp_path: Path
) -> None:
    cpu, more = ("--device", "cpu"), draw(tmp_path / "more", "f", 4, start=8)
    shutil.copy(images / "f" / "0.png", more / "f")
    shutil.copy(images / "g" / "1.png", more / "f" / "moved.png")
    printed = done("add", grown[0], more, "--more", "--out", tmp_path / "more-of-f", *cpu)
    assert "1 of 6 images seen already, counted once (f/0.png)" in printed
    found = read_facts(tmp_path / "more-of-f").history[-1].data["audit"]["repeated"]
    told = {"a known image of g", "f/moved.png"}
    assert "across classes" in {each["where"] for each in found if told <= {*each["images"]}}
    assert "5 more photographs of 1 class, 2 classes computed anew" in printed
    assert f"`clinit model show {grown[0]} --html PAGE.html` shows them, and how" in printed
    again = draw(tmp_path / "again", "f", 1, start=20)
    printed = done("add", tmp_path / "more-of-f", again, "--more", *cpu)
    assert f"then make {tmp_path / 'more-of-f'} and this model again" in printed
    done("add", remembering, draw(tmp_path / "other", "hi", 6), "--out", tmp_path / "hi", *cpu)
    words = ("model", "merge", tmp_path / "more-of-f", tmp_path / "hi", "--out")
    printed = done(*words, tmp_path / "both")
    assert f"{tmp_path / 'both'} knows 9 classes. Your 33 photographs" in printed
    assert "2 classes computed anew, 2 classes added" in printed
    assert memory_of(tmp_path / "both").counts.tolist() == [5] * 5 + [13, 8, 6, 6]
    told = json.loads(call(*words, tmp_path / "both.safetensors", "--json").stdout)
    assert (told["history"][-1]["action"], told["memory"]) == ("merge", None)


def test_classes_are_removed_with_what_is_remembered_of_them(
    grown: tuple[Path, str], tmp_path: Path
) -> None:
    fewer = tmp_path / "fewer"
    printed = done("remove", grown[0], "b", "g", "--out", fewer)
    assert f"{fewer} knows 5 classes, 2 fewer: b, g removed" in printed
    assert "`clinit remember` computes it anew" in printed
    assert "probabilities are divided as before: temperature" in printed
    before, after = head_of(grown[0]), head_of(fewer)
    assert after.class_names == memory_of(fewer).class_names == tuple("acdef")
    np.testing.assert_array_equal(after.weight, before.weight[[0, 2, 3, 4, 5]])
    assert not memory_of(fewer).exact
    done("remove", fewer, "f", "--out", tmp_path / "few")
    more, out = draw(tmp_path / "more", "h", 3), tmp_path / "out"
    done("add", tmp_path / "few", more, "--out", out, "--device", "cpu")
    assert read_facts(out / "model.safetensors").tasks == (0, 0, 1, 2, 4)  # 3 was used
    again = draw(tmp_path / "again", "acdef", 6, start=100)
    done("remember", fewer, again, "--out", tmp_path / "anew", "--device", "cpu")
    assert memory_of(tmp_path / "anew").exact


def test_given_rows_that_the_model_holds_out_are_not_trained_on(
    model: Path, images: Path, tmp_path: Path
) -> None:
    old, cpu = draw(tmp_path / "old", "abcde", 10, start=300), ("--device", "cpu")
    done("remember", model, old, "--out", tmp_path / "remembers", *cpu)
    given = ("--old", tmp_path / "remembers-features")
    out = tmp_path / "out"
    printed = done("add", tmp_path / "remembers", images, "--out", out, *given, *cpu)
    assert "40 real features from the cache" in old_rows(out)  # of 50, ten are held out
    assert "Old classes: of 10 photographs held out, " in printed
    assert "The other" not in printed
    assert memory_of(out).counts.tolist() == [8] * 7
    assert memory_of(out).held_out.counts().tolist() == [2] * 5 + [0, 0]


def test_python_gives_the_same_model(
    remembering: Path, grown: tuple[Path, str], images: Path, tmp_path: Path
) -> None:
    out, model = tmp_path / "out", clinit.load(remembering, device="cpu")
    added = model.add(images)
    written = added.save(out)
    one, two = head_of(grown[0]), head_of(out)
    np.testing.assert_array_equal(one.weight, two.weight)
    np.testing.assert_array_equal(one.bias, two.bias)
    assert (added.old.total, added.new.total) == (5, 16)
    assert added.lines(str(grown[0]))[0] in grown[1]
    assert [*tmp_path.iterdir()] == [out], "features are not kept unless asked for"
    assert written.path == out
    assert model.audit(images).content == added.audit.content
    with pytest.raises(ModelError, match="there is already a model at"):
        added.save(out)
    with pytest.raises(ValueError, match="max_old_loss takes a number"):
        model.add(images, max_old_loss=-1)
    changed = added.model.rename({"f": "F"}).remove(["a", "g"])
    actions = [each.action for each in changed.facts.history]
    assert actions == ["run", "remember", "add", "rename", "remove"]
    changed.save(tmp_path / "changed")
    files = [images / "f" / "0.png", images / "g" / "0.png"]
    asked = [each.predict(files) for each in (changed, clinit.load(tmp_path / "changed"))]
    for one, two in zip(*asked, strict=True):  # the network in memory has the rows of the change
        assert [each.name for each in one.guesses] == [each.name for each in two.guesses]


def test_few_or_bad_images_are_told(model: Path, images: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(images, tmp_path / "images"))
    draw(own, "h", 2)
    for bad in ("f/3.png", "h/0.png", "g/9.heic"):
        (own / bad).write_bytes(b"no image")
    printed = done("add", model, own, "--out", tmp_path / "out", "--device", "cpu")
    left_out = ("2 of 18 images cannot be read: left out (f/3.png: ", "g/9.heic")
    tested = "Your 16 photographs, 15 tested (1 not, alone in a class), each"
    for part in (*left_out, tested, "never tested: 1 class (h); a class "):
        assert part in printed
    for each in (own / "f").iterdir():
        each.write_bytes(b"no image")
    assert "can be read (f)" in refused(CacheError, "add", model, own, "--out", tmp_path / "no")
    single, out = draw(tmp_path / "single", "f", 1), tmp_path / "one.safetensors"
    printed = done("add", model, single, "--out", out)
    assert f"{out} knows 6 classes. Your photograph could not be tested." in printed


def test_each_image_is_read_once(
    model: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    opened = os.open

    def counted(path: Any, *flags: int, **rest: Any) -> int:
        read.append(str(path))
        return opened(path, *flags, **rest)

    monkeypatch.setattr(os, "open", counted)
    files = sorted(str(each) for each in images.rglob("*.png"))
    done("add", model, images, "--out", tmp_path / "out", "--device", "cpu")
    assert sorted(each for each in read if each.endswith(".png")) == files


def test_changed_images_are_computed_anew_unless_their_size_hides_it(
    model: Path, images: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(images, tmp_path / "images"))
    words = ("add", model, own, "--device", "cpu", "--overwrite", "--out")
    done(*words, tmp_path / "out")
    Image.effect_noise((50, 40), 30).save(own / "f" / "3.png")
    printed = done(*words, tmp_path / "out")
    assert "1 image new (in f), 1 image gone (in f); only new images" in printed
    done(*words, tmp_path / "fresh")
    out, fresh = (tmp_path / f"{name}-features" for name in ("out", "fresh"))
    now, anew = (json.loads((each / "images.json").read_bytes()) for each in (out, fresh))
    assert now == anew
    assert open_split(out / "train").manifest.digest == open_split(fresh / "train").manifest.digest
    (own / "f" / "3.png").write_bytes((own / "f" / "3.png").read_bytes()[:-20] + bytes(20))
    assert "1 image in " in refused(CacheError, *words, tmp_path / "out")


def test_odd_images_are_warned_of(remembering: Path, images: Path, tmp_path: Path) -> None:
    own, out = Path(shutil.copytree(images, tmp_path / "images")), tmp_path / "out"
    draw(own, "A", 6, start=70)
    shutil.copy(own / "f" / "0.png", own / "f" / "again.png")
    shutil.copy(own / "f" / "1.png", own / "g" / "moved.png")
    Image.new("RGB", (8, 8)).save(own / "g" / "tiny.png")
    (own / "g" / "bad.png").write_bytes(b"no image")
    result = call("add", remembering, own, "--out", out, "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    for pair in ({"f/0.png", "f/again.png"}, {"f/1.png", "g/moved.png"}):
        assert [each for each in told["repeated"] if pair <= {*each["images"]}], pair
    assert told["odd"] == [{"image": "g/tiny.png", "why": "8 x 8 pixels"}]
    assert ("A", "a") in {(each["class"], each["old"]) for each in told["known"]}
    assert told["turned"]["wrong"] == sum(told["turned"]["answers"].values())
    lines = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert "the folder has A, the model has a" in lines.pop(0)  # before the audit, which counts it
    (change,) = (each for each in read_facts(out).history if each.action == "add")
    assert told.pop("unreadable")["first"][0]["image"] == "g/bad.png"
    assert [told.pop(each) for each in ("listing", "knows", "untested")] == [None, 8, []]
    price, accuracy = told.pop("prices")[2], told.pop("accuracy")
    assert price == {"points": 1, "old": accuracy["old"], "new": accuracy["new"]}
    assert {"model": str(out), "notes": None, **change.data["audit"]} == told
    assert f"`clinit model show {out} --html PAGE.html` shows odd photographs" in result.stderr
    assert "g/bad.png" in str(read_facts(out).history[-1].data["unreadable"])


def test_a_network_of_timm_is_a_model_too(
    tiny_weights: Path, tiny_run: Path, remembering: Path, images: Path, tmp_path: Path
) -> None:
    network = (*NETWORK, "--weights", tiny_weights)
    old, out = draw(tmp_path / "old", "ab", 6), tmp_path / "remembers"
    assert "1 class is not tested: a " in done("remember", old, "--out", out, *network)
    facts = read_facts(tmp_path / "remembers" / "model.safetensors")
    assert (facts.class_names, facts.tasks) == (("a", "b", "c"), (0, 0, 0))
    printed = done("add", images, "--out", tmp_path / "out", *network)
    assert "synthetic features from the classifier's weights" in old_rows(tmp_path / "out")
    assert "The 3 classes of convnextv2_atto: no photograph of them is held out" in printed
    assert head_of(tmp_path / "out").class_names == tuple("abcfg")
    cache = tiny_run.parent / "caches" / "base"
    message = refused(ModelError, "add", images, "--out", tmp_path / "no", "--old", cache, *network)
    assert "do not come from the network of convnextv2_atto: they differ in weights" in message
    done("remove", remembering, "d", "e", "--out", tmp_path / "fewer")
    shutil.copy(tmp_path / "fewer" / "memory.safetensors", tmp_path / "remembers")
    message = refused(ModelError, "add", tmp_path / "remembers", images, "--out", tmp_path / "no")
    assert "to another backbone: it differs in body" in message


@pytest.mark.parametrize("target", ["nowhere", "memory.safetensors", None])
def test_a_memory_that_cannot_be_read_or_is_of_others_is_refused(
    remembering: Path, images: Path, tmp_path: Path, target: str | None
) -> None:
    own = Path(shutil.copytree(remembering, tmp_path / "model"))
    file, out = own / "memory.safetensors", ("--out", tmp_path / "out")
    if target is None:
        done("rename", remembering, "a=z", "--out", own, "--overwrite")
        shutil.copy(remembering / "memory.safetensors", own)
    else:
        file.unlink()
        file.symlink_to(target)
    for words in (["model", "show", own], ["add", own, images, *out], ["remove", own, "b", *out]):
        assert str(file) in refused(ModelError if target is None else StorageError, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ("add MODEL b1h1", ModelError, "already classes of the model: 1 of 2 classes (b)"),
        ("add MODEL h3 --old IMAGES-CACHE", ModelError, "-CACHE (f, g) is a class that"),
        ("add MODEL f3g0", ManifestError, "1 of 2 classes in"),
        ("add MODEL 0", ManifestError, "0 is empty"),
        ("add IMAGES MODEL", ModelError, "Give the model first: MODEL IMAGES"),
        ("add MODEL IMAGES --out TAKEN", ModelError, "exists and is never replaced"),
        ("add IMAGES", None, "give MODEL and IMAGES, one folder"),
        ("add MODEL IMAGES --backbone resnet18", None, "--backbone and only IMAGES"),
        ("add MODEL IMAGES --mean 0.5", None, "--mean needs --backbone"),
        ("add MODEL IMAGES --without nowhere", ManifestError, "cannot read nowhere: No such file"),
        ("add MODEL IMAGES --without LIST", ManifestError, "1 line of LIST not the path of an"),
        ("add MODEL IMAGES --html x.csv", None, "--html needs a file that ends in .html, got x"),
        ("add MODEL IMAGES --more", ModelError, "new to the model: 2 of 2 classes (f, g)"),
        ("add MODEL A1 --more", ModelError, "the folder has A, the model has a"),
        ("add MODEL a1 --more", ModelError, "of all training images of 1 class (a)"),
        ("add MODEL f1 --out= --overwrite", None, "--overwrite needs --out"),
        ("add --backbone=resnet18 IMAGES --out=", None, "--backbone needs --out"),
        ("model merge MODEL MODEL", ModelError, "has all classes of the other"),
        ("model merge MODEL IMAGES", ModelError, "it is not a model"),
        ("remember MODEL f1", ModelError, "new to the model: 1 of 1 class (f)"),
        ("remember MODEL a1 --out x.safetensors", None, "a file has no memory"),
        ("remove MODEL d8", ModelError, "no class d8; its classes of similar names: d"),
        ("remove MODEL a b c d e", ModelError, "without 5 classes, none would be left"),
        ("rename MODEL a=c", ModelError, "'c' cannot be the name of a class"),
        ("rename MODEL a=\x1b[31m", ModelError, "cannot be the name of a class"),
        ("rename MODEL ab", None, "expected OLD=NEW ('ab=new name'), each OLD once, got 'ab'"),
        ("rename MODEL a=x a=y", None, "each OLD once, got 'a=y'"),
    ],
)
def test_what_does_not_fit_is_refused(
    model: Path,
    images: Path,
    grown: tuple[Path, str],
    tmp_path: Path,
    words: str,
    kind: type[Exception] | None,
    message: str,
) -> None:
    (tmp_path / "TAKEN").mkdir()
    (tmp_path / "LIST").write_text("nowhere/1.png\n", encoding="utf-8")
    places = {"MODEL": str(model), "IMAGES": str(images)}
    places |= {name: str(tmp_path / name) for name in ("TAKEN", "LIST")}
    places["IMAGES-CACHE"] = f"{tmp_path / 'IMAGES'}-CACHE"
    shutil.copytree(f"{grown[0]}-features", places["IMAGES-CACHE"])
    command, *rest = words.split()
    arguments = [places.get(word, word) for word in rest]
    if arguments[1:2] and command in ("add", "remember") and arguments[1] not in places.values():
        root = tmp_path / arguments[1]
        root.mkdir()
        for names, count in re.findall(r"([A-Za-z]+)(\d)", root.name):
            draw(root, names, int(count))
        arguments[1] = str(root)
    out = () if "--out" in words else ("--out", tmp_path / "out")
    arguments = [each for each in arguments if each != "--out="]
    result = call(command, *arguments, *out, *("--device", "cpu") if command == "add" else ())
    assert result.exit_code, result.output
    if kind is not None:
        assert isinstance(result.exception, kind), result.exception
    remedy = getattr(result.exception, "remedy", "")
    told = f"{result.output} {result.exception} {remedy}".replace("│", " ")
    for name in ("MODEL", "IMAGES", "LIST"):
        told = told.replace(places[name], name)
    assert message in " ".join(told.split())
    assert not (tmp_path / "out").exists()


def test_a_new_name_that_another_class_has_in_words_is_told(tmp_path: Path) -> None:
    head = Head(np.eye(2, dtype=np.float32), np.zeros(2, np.float32), ("n01440764", "b"))
    write_head(head, tmp_path / "head.npz")
    told = done("rename", tmp_path / "head.npz", "b=Tench", "--out", tmp_path / "new.npz")
    assert "Warning: classes of one name in words: Tench and n01440764" in told
