"""The command reference is what the help says of the commands as they are."""

from clinit.cli.reference import reference
from tests.docs.blocks import GENERATED, ROOT


def test_the_command_reference_is_current() -> None:
    stored = (ROOT / "docs" / GENERATED).read_text(encoding="utf-8")
    assert stored == reference(), "write it anew: `make reference`"
