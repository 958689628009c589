import pytest
from timm.data import ImageNetInfo

from clinit.errors import ManifestError
from clinit.extract.dataset.known import SPLITS, known_datasets, read_dataset
from clinit.extract.dataset.scan import LAYOUTS


@pytest.mark.parametrize("name", ["digits", "imagenet1k", "places365"])
def test_a_description_is_complete(name: str) -> None:
    assert name in known_datasets()
    dataset = read_dataset(name)
    assert dataset.name == name
    assert dataset.title
    assert dataset.licence
    assert dataset.homepage.startswith("http")
    assert len(set(dataset.classes)) == len(dataset.classes)
    for split in SPLITS:
        assert any(split in layout.folders for layout in dataset.layouts)
    assert {layout.kind for layout in dataset.layouts} <= set(LAYOUTS)


def test_imagenet_classes_are_in_the_order_of_the_pretrained_head() -> None:
    assert list(read_dataset("imagenet1k").classes) == list(ImageNetInfo().label_names())


def test_places_classes_are_in_official_order_and_none_lies_inside_another() -> None:
    classes = read_dataset("places365").classes
    assert len(classes) == 365
    # The official order is the alphabetical one; these labels are from its own list.
    assert list(classes) == sorted(classes)
    official = {0: "airfield", 91: "church/outdoor", 147: "florist_shop/indoor"}
    official |= {255: "parking_garage/indoor", 320: "subway_station/platform", 364: "zen_garden"}
    assert {label: classes[label] for label in official} == official
    assert not any("-" in name for name in classes)
    assert not any(name.rpartition("/")[0] in classes for name in classes)


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ManifestError, match=r"'imagenet'.* digits, imagenet1k, places365"):
        read_dataset("imagenet")
