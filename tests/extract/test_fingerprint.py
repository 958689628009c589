from clinit.extract.fingerprint import backbone_fields, is_nameless
from clinit.extract.plan import backbone_identifier


def test_what_says_which_rows_does_not_say_which_backbone() -> None:
    backbone = {"backbone": "clip", "imported": "npy", "dtype": "float16"}
    rows = {"manifest": "1", "features": "2"}
    assert backbone_fields(backbone | rows) == backbone
    assert backbone_identifier(backbone | rows) == backbone_identifier(backbone)
    assert backbone_identifier(backbone) != backbone_identifier(backbone | {"backbone": "dino"})


def test_only_an_import_under_the_name_of_earlier_versions_is_nameless() -> None:
    assert is_nameless({"backbone": "imported", "imported": "npy"})
    assert not is_nameless({"backbone": "clip", "imported": "npy"})
    assert not is_nameless({"backbone": "imported", "weights": "1"})
