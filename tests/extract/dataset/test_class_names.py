from clinit.extract.dataset.class_names import title
from clinit.extract.dataset.known import read_dataset


def test_every_class_of_imagenet_has_words() -> None:
    names = read_dataset("imagenet1k").classes
    titles = [title(name) for name in names]
    assert titles[0] == "tench"
    assert not [name for name, text in zip(names, titles, strict=True) if name == text]


def test_other_names_are_kept() -> None:
    for name in ("campsite", "n1", "n99999999", "n02979186 ", ""):
        assert title(name) == name
