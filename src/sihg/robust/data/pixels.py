"""Images and other values as tensors: decoded with limits, and never by another program."""

import io

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from sihg.errors import InputError

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # the content decides, not the ending of the name
MAX_PIXELS = 2**26  # of an image; a file of a few bytes can announce any number
MAX_FILE_BYTES = 2**28  # of an image
GREY = ("1", "L", "LA")  # modes of Pillow that become one channel
Pixels = NDArray[np.uint8]


def as_pixels(image: Image.Image) -> Pixels:
    """Convert a PIL image to uint8 (channels, height, width): one channel if it is grey, else three."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise InputError("image-pixels", width=width, height=height, limit=MAX_PIXELS)
    if image.mode.startswith(("I", "F")):
        raise InputError("image-bits", mode=image.mode)
    array = np.asarray(image.convert("L" if image.mode in GREY else "RGB"))
    return np.array(array[None] if array.ndim == 2 else array.transpose(2, 0, 1), order="C")


def decode_image(data: bytes, place: object) -> Pixels:
    """Decode an image. Formats that Pillow gives to other programs to decode, such as EPS, are not among FORMATS.

    Args:
        data: The bytes of the image.
        place: Where they come from, for messages.
    Raises:
        InputError: They are no image of a known format, or too large.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return as_pixels(image)
    except InputError as error:
        raise error.within(place) from None
    except Exception as error:  # Pillow raises whatever a broken file causes
        raise InputError("image-unreadable", path=str(place), reason=reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """Return in one line why an image or a file could not be read."""
    if isinstance(error, UnidentifiedImageError):
        return "no image of a known format"
    return (str(getattr(error, "strerror", None) or error) or type(error).__name__).split("\n")[0]


def with_channels(image: Pixels, channels: int) -> Pixels:
    """Return a grey image with this number of equal channels, any other image unchanged."""
    return np.broadcast_to(image, (channels, *image.shape[1:])) if len(image) == 1 else image


def from_image(image: Image.Image, row: int) -> Tensor:
    """Convert an image of a Dataset, which Pillow may decode only now."""
    if image.format == "EPS":  # decoded by another program, Ghostscript
        raise InputError("image-unreadable", path=f"x of row {row}", reason="EPS is a program, not pixels")
    try:
        return torch.from_numpy(as_pixels(image))
    except InputError as error:
        raise error.within(f"x of row {row}") from None
    except Exception as error:  # a broken image may raise anything
        raise InputError("image-unreadable", path=f"x of row {row}", reason=error) from error


def as_tensor(value: object, what: str) -> Tensor:
    """Convert numbers to a tensor of their own on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), copy=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError("not-numbers", what=what, error=error) from None


def as_single(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Convert float64 and longer to float32; values that are too large become inf, which later checks refuse."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32) if x.dtype.kind == "f" and x.dtype.itemsize > 4 else x


def channels_first(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return images (n, height, width) or (n, height, width, channels) as (n, channels, height, width)."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return x.transpose(0, 3, 1, 2)
    return x
