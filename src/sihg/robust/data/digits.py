"""`digits`: 1,797 handwritten digits of 8x8 pixels, which come with the package (digits.npz, digits.txt)."""

import io
from pathlib import Path

import numpy as np
import torch

from sihg.errors import InputError
from sihg.robust.data.file_checks import md5
from sihg.robust.data.samples import Samples, as_samples

PATH = Path(__file__).with_name("digits.npz")
TRAIN = 1400
CLASSES = tuple("0123456789")
MD5 = "f5ae38b01960fdff2a6e6f0535459502"  # of digits.npz


def load() -> tuple[Samples, Samples]:
    """Load 1,400 samples for training and 397 for testing, each class in proportion: the first 1,400 and the others.

    The source's values v = 0..16 are kept as round(255 v / 16), so that as floats they are v / 16 to within 1/510.
    """
    data = PATH.read_bytes()
    if (found := md5(data)) != MD5:
        raise InputError("digits-damaged", path=PATH, expected=MD5, found=found)
    with np.load(io.BytesIO(data)) as arrays:
        x, y = arrays["x"], arrays["y"]
    x = np.rint(x[:, None] * (255 / 16)).astype(np.uint8)
    whole = as_samples((torch.from_numpy(x), torch.from_numpy(y)), classes=CLASSES, name="digits")
    return whole.take(slice(TRAIN)), whole.take(slice(TRAIN, None))
