"""Denoise an image by total variation: python examples/denoise.py [OUT.png]."""

import sys

from matplotlib.figure import Figure
from torch import Tensor

from sihg.minimax import solve, zoo


def main(out: str) -> None:
    noisy = zoo.phantom(128)
    result = solve(zoo.get("tv-denoising", image=noisy, weight=0.12).problem, "ssi-hg", iterations=600, tolerance=1e-2)
    assert isinstance(result.w, Tensor)
    print(result.stopped)
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes, image, title in zip(figure.subplots(1, 2), (noisy, result.w), ("noisy", "denoised"), strict=True):
        axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set_title(title)
        axes.axis("off")
    figure.savefig(out)
    print(f"written: {out}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "denoised.png")
