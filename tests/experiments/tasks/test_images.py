"""Images from files."""

import numpy as np
import pytest
from PIL import Image

from experiments.tasks.prediction import read_image


@pytest.mark.parametrize("channels", [1, 3])
def test_shape_and_range(tmp_path, channels, monkeypatch):
    shades = np.arange(6, dtype=np.uint8).reshape(2, 3) * 51  # 0 to 255
    Image.fromarray(shades).save(tmp_path / "a.png")
    image = read_image(f" {tmp_path / 'a.png'} ", (2, 3, channels))
    monkeypatch.setenv("HOME", str(tmp_path))
    np.testing.assert_array_equal(read_image("~/a.png", (2, 3, channels)), image)
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, np.stack([shades / 255] * channels, -1), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_image_of_more_than_8_bits_raises(tmp_path, dtype):
    Image.fromarray(np.full((2, 3), 700, dtype)).save(tmp_path / "a.tiff")
    with pytest.raises(ValueError, match=r"a\.tiff has more than 8 bits .*: convert it to 8 bits"):
        read_image(str(tmp_path / "a.tiff"), (2, 3, 1))


def test_what_is_no_image_of_the_size_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    Image.new("L", (3, 2)).save(tmp_path / "a.png")
    Image.new("L", (7, 3)).save(tmp_path / "large.png")
    (tmp_path / "text").write_text("text")
    Image.new("L", (2, 2)).save(tmp_path / "b.png")
    begin, _, end = (tmp_path / "b.png").read_bytes().partition(b"IDAT")
    (tmp_path / "damaged.png").write_bytes(begin[:-4] + bytes(4) + b"IDAT" + end)  # of length 0
    for name, message in (
        ("a.png", "has 3 x 2 pixels, and the model reads 2 x 2"),
        ("large.png", "has more pixels than Pillow reads"),
        ("text", "is no image"),
        ("damaged.png", "is no image"),
        ("nothing", "cannot be read: No such file or directory"),
        ("", "cannot be read: Is a directory"),
    ):
        with pytest.raises(ValueError, match=f"{tmp_path / name}.* {message}"):
            read_image(str(tmp_path / name), (2, 2, 1))
