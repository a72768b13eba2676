"""Images from files."""

from os.path import expanduser
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

MODES = {1: "L", 3: "RGB"}  # of Pillow, by number of channels


def read_image(path: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Read an image file as float32 `[height, width, channels]` from 0 (black) to 1 (white).

    Nothing is inverted: for a model of `digits`, whose ink is 1, ink must be white on black.

    Args:
        path: of a file in any format that Pillow reads; a grey image has at most 8 bits.
        shape: that the model reads; colours are converted to its channels.

    Raises:
        ValueError: a file that is no image, or an image of another size or of more bits.
    """
    height, width, channels = shape
    try:
        with Image.open(Path(expanduser(path.strip()))) as image:
            if image.size != (width, height):
                raise ValueError(
                    f"{path} has {image.width} x {image.height} pixels, and the model reads "
                    f"{width} x {height}"
                )
            if image.mode.startswith(("I", "F")):  # `convert` clips these at 255
                raise ValueError(f"{path} has more than 8 bits per channel: convert it to 8 bits")
            pixels = np.asarray(image.convert(MODES[channels]), np.float32)
    except (UnidentifiedImageError, SyntaxError) as error:  # SyntaxError: a damaged PNG
        raise ValueError(f"{path} is no image") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path} has more pixels than Pillow reads") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    return (pixels / 255).reshape(shape)
