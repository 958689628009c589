import ctypes
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from clinit.errors import ImageError, ManifestError
from clinit.extract.decode import decode, decoder_version, read_image_file


@pytest.fixture
def picture() -> Image.Image:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(np.kron(blocks, np.ones((8, 8, 1), dtype=np.uint8)))


def encoded(image: Image.Image, fmt: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, fmt, **options)
    return file.getvalue()


def pillow_pixels(content: bytes) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))


def pixels(content: bytes) -> np.ndarray:
    return decode(content).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_every_format_gives_the_pixels_that_pillow_gives(picture: Image.Image, fmt: str) -> None:
    content = encoded(picture, fmt)
    np.testing.assert_allclose(pixels(content).astype(int), pillow_pixels(content), atol=1)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1"])
def test_every_colour_mode_becomes_rgb(picture: Image.Image, mode: str) -> None:
    content = encoded(picture.convert(mode), "PNG")
    np.testing.assert_array_equal(pixels(content), pillow_pixels(content))


def test_a_cmyk_jpeg_has_the_colours_that_pillow_gives(picture: Image.Image) -> None:
    content = encoded(picture.convert("CMYK"), "JPEG", quality=95)
    np.testing.assert_allclose(pixels(content).astype(int), pillow_pixels(content), atol=2)


@pytest.mark.parametrize("fmt", ["PNG", "TIFF"])
def test_16_bit_samples_are_scaled_and_not_clipped(fmt: str) -> None:
    samples = np.random.default_rng(0).integers(0, 65536, (9, 7), dtype=np.uint16)
    expected = np.rint(samples / 257)[..., None].repeat(3, axis=2)
    content = encoded(Image.fromarray(samples), fmt)
    np.testing.assert_allclose(pixels(content), expected, atol=1)


def test_of_an_animated_gif_the_first_frame_counts(picture: Image.Image) -> None:
    frames = [picture.rotate(90), picture.rotate(180)]
    content = encoded(picture, "GIF", save_all=True, append_images=frames)
    np.testing.assert_array_equal(pixels(content), pillow_pixels(encoded(picture, "GIF")))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "TIFF"])
def test_an_exif_rotation_is_applied(picture: Image.Image, fmt: str, orientation: int) -> None:
    exif = picture.getexif()
    exif[274] = orientation
    content = encoded(picture, fmt, exif=exif)
    np.testing.assert_allclose(pixels(content).astype(int), pillow_pixels(content), atol=1)
    assert pixels(content).shape == ((48, 64, 3) if orientation < 5 else (64, 48, 3))


def test_an_image_of_one_pixel_is_an_image(picture: Image.Image) -> None:
    assert pixels(encoded(picture.resize((1, 1)), "JPEG")).shape == (1, 1, 3)


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_a_truncated_jpeg_is_refused(
    picture: Image.Image, options: dict[str, object], part: float
) -> None:
    content = encoded(picture, "JPEG", **options)
    with pytest.raises(ImageError, match=r"^cannot be decoded: Image is incomplete or truncated$"):
        decode(content[: int(part * len(content))])


@pytest.mark.parametrize("fmt", ["PNG", "BMP", "TIFF"])
def test_other_truncated_images_are_refused(picture: Image.Image, fmt: str) -> None:
    content = encoded(picture, fmt)
    with pytest.raises(ImageError, match="cannot be decoded: "):
        decode(content[: len(content) // 2])


def test_a_text_file_is_not_an_image() -> None:
    with warnings.catch_warnings(), pytest.raises(ImageError, match="not an image of a known"):
        decode(b"these are not the pixels you are looking for")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(ImageError, match="the file is empty"):
        read_image_file(tmp_path / "empty.jpg", tmp_path)


def test_a_missing_file_is_this_files_problem(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="the file is missing"):
        read_image_file(tmp_path / "absent.jpg", tmp_path)


def test_a_folder_in_place_of_a_file_is_this_files_problem(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="cannot be read: Is a directory"):
        read_image_file(tmp_path, tmp_path)


def test_a_link_that_leaves_the_root_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ImageError, match="a link that leaves the root"):
        read_image_file(tmp_path / "root" / "link.png", tmp_path / "root")


def test_a_link_within_a_linked_root_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.png").write_bytes(b"content")
    (tmp_path / "real" / "2.png").symlink_to("1.png")
    (tmp_path / "root").symlink_to("real")
    assert read_image_file(tmp_path / "root" / "2.png", tmp_path / "root") == b"content"


def test_a_pipe_in_place_of_an_image_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="not a regular file"):
        read_image_file(tmp_path / "pipe.png", tmp_path)


def test_a_vanished_folder_stops_everything(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="train/cat has vanished") as caught:
        read_image_file(tmp_path / "train" / "cat" / "1.jpg", tmp_path)
    assert f"Mount {tmp_path} again" in caught.value.remedy


def test_a_failing_disk_stops_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(ManifestError, match="Input/output error"):
        read_image_file(tmp_path / "1.jpg", tmp_path)


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Let this thread meet file permissions as an ordinary user does, root or not."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        before = libc.setfsuid(65534)
    except AttributeError:
        pytest.skip("setfsuid exists on Linux only")
    try:
        yield
    finally:
        libc.setfsuid(before)


def test_a_file_without_read_permission_is_this_files_problem(tmp_path: Path) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(b"content")
    path.chmod(0)
    tmp_path.chmod(0o755)
    problems: list[Exception] = []

    def read() -> None:  # in a thread of its own: the file-system user is the thread's
        try:
            with _as_nobody():
                read_image_file(path, tmp_path)
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert [str(problem) for problem in problems] == ["no permission to read the file"]


def test_the_decoders_are_named_with_their_versions() -> None:
    assert decoder_version().startswith("torchcodec ")


def test_decoding_works_in_threads(picture: Image.Image) -> None:
    content = encoded(picture, "JPEG")
    results: list[np.ndarray] = []
    job: Callable[[], None] = lambda: results.append(pixels(content))  # noqa: E731
    threads = [threading.Thread(target=job) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(np.array_equal(result, results[0]) for result in results)
