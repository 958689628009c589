"""JSON documents with a digest: *sealed* when they are written, checked when they are read.

Every document begins with its format and ends with the SHA-256 of the rest (its *seal*), so that a
changed byte is detected even if the JSON remains valid. After checks of size, nesting and seal, it
is converted into the type that the reader passes; msgspec reports fields that are missing, of
another type or out of range.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from clinit.errors import ClinitError, unreadable
from clinit.files.commit import commit_file
from clinit.files.paths import is_file
from clinit.words import cut_short

T = TypeVar("T")

# Types of fields. Real values are within the ranges, whose sums and products do not overflow.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Number = Annotated[int, Meta(ge=-(2**53), le=2**53)] | Annotated[float, Meta(ge=-1e300, le=1e300)]
Seconds = Annotated[int, Meta(ge=0, le=2**53)] | Annotated[float, Meta(ge=0, le=1e300)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

_SEAL = "sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentKind:
    """One kind of document, and the error to raise if a document is damaged."""

    title: str
    """Name with its article: `the plan of a feature cache`."""
    format: str
    older: tuple[str | None, ...] = ()
    """Earlier formats, without a seal, that can be read; None means documents without a format."""
    error: type[ClinitError]
    remedy: str
    max_bytes: int = 2**24
    """Largest size of a file in bytes; reading takes about twenty times as much memory."""

    def text(self, content: Mapping[str, Any], *, indent: int | None = 2) -> str:
        """Return the document as JSON: the format is its first field, the digest its last."""
        own = {"format": self.format, **content}
        sealed = {**own, _SEAL: content_sha256(own)}
        told = json.dumps(sealed, indent=indent, ensure_ascii=False, allow_nan=False)
        # A path that is not UTF-8 contains lone surrogates, which UTF-8 text can only escape.
        return told.encode(errors="backslashreplace").decode()

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        """Create or replace the document at `path`, atomically.

        Raises:
            ClinitError: If the file cannot be written.
        """
        text = (self.text(content) + "\n").encode()
        commit_file(path, lambda draft: draft.write_bytes(text))

    def read(self, path: Path, content: type[T], adapt: Callable[[Any], Any] = lambda _: _) -> T:
        """Read the document at `path` as `content`, a dataclass or a typed dictionary.

        Args:
            path: The file.
            content: The type of its fields.
            adapt: Changes the fields before the conversion, such as from another layout.

        Raises:
            ClinitError: The `error` of this kind, if the document is absent, damaged or has another
                format.
            StorageError: If the file exists and cannot be read.
        """
        return self.convert(adapt(self.load(path)), content, origin=str(path))

    def load(self, path: Path) -> dict[str, Any]:
        """Read the document at `path`; check its format and seal, but not its fields.

        Raises:
            ClinitError: As in `read`.
        """
        try:
            if not is_file(path):
                raise self.refusal(f"there is no {path.name} in {path.parent}")
            if (size := path.stat().st_size) > self.max_bytes:
                raise self.refusal(
                    f"{path} is {size:,} bytes long, expected at most {self.max_bytes:,}"
                )
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise unreadable(path, error) from error
        except UnicodeDecodeError as error:
            raise self._damaged(str(path), "it is not UTF-8 text") from error
        return self.parse(text, origin=str(path))

    def parse(self, text: str, *, origin: str) -> dict[str, Any]:
        """Check the format and the seal of a document; return its content without them.

        Args:
            text: The document.
            origin: The file or object that contains it, for messages.

        Raises:
            ClinitError: As in `read`.
        """
        try:
            content = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        except RecursionError as error:
            raise self._damaged(origin, "it is nested too deeply") from error
        except ValueError as error:
            raise self._damaged(origin, str(error)) from error
        if not isinstance(content, dict):
            raise self._damaged(origin, f"it contains {cut_short(content)} instead of fields")
        found, seal = content.get("format"), content.pop(_SEAL, None)
        if found not in (self.format, *self.older):
            raise self.refusal(
                f"{origin} is not {self.title}: its format is {cut_short(found)},"
                f" expected {self.format!r}"
            )
        if (seal is not None or found == self.format) and seal != content_sha256(content):
            raise self._damaged(origin, "it has changed since it was written")
        content.pop("format", None)
        return content

    def convert(self, content: Mapping[str, Any], kind: type[T], *, origin: str) -> T:
        """Convert the content of a document into the type `kind`.

        Raises:
            ClinitError: If a field is missing, has another type or is out of range.
        """
        try:
            return msgspec.convert(content, kind)
        except RecursionError as error:
            raise self._damaged(origin, "it is nested too deeply") from error
        except (msgspec.ValidationError, ValueError, TypeError, OverflowError) as error:
            raise self._damaged(origin, str(error)) from error

    def _damaged(self, origin: str, why: str) -> ClinitError:
        return self.refusal(f"{origin} is damaged: {why}")

    def refusal(self, message: str) -> ClinitError:
        """Return the error of this kind of document, with its remedy."""
        return self.error(message, remedy=self.remedy)


def content_sha256(content: Any) -> str:
    """Return the SHA-256 (hex) of plain values; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it contains {name}, which is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"it contains {cut_short(text)}, which is too large for float64")
    return number
