r"""A picture of every shift of images, for docs/data.md.

python -m benchmarks.image_shifts --picture docs/images/image-shifts.png
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from numpy.typing import NDArray

from common.data.datasets import load_dataset
from common.data.shifts import IMAGE_SHIFTS

PLACES = (-1.0, -0.5, 0.0, 0.5, 1.0)
SIDE = 96


def drawn() -> NDArray[np.float32]:
    """Return a picture (1, 3, SIDE, SIDE) in [0, 1] that is alike no way round: a house at dusk."""
    down, right = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    picture = np.stack([0.55 + 0.35 * down, 0.65 + 0.1 * right, 0.95 - 0.3 * down])
    shapes = [
        (down > 0.78, (0.30, 0.55, 0.25)),  # meadow
        ((down > 0.45) & (down < 0.82) & (abs(right - 0.42) < 0.2), (0.85, 0.75, 0.55)),  # wall
        ((down > 0.22) & (down < 0.46) & (abs(right - 0.42) < down - 0.2), (0.75, 0.25, 0.2)),
        ((down > 0.6) & (down < 0.82) & (abs(right - 0.33) < 0.05), (0.35, 0.2, 0.15)),  # door
        ((abs(down - 0.57) < 0.06) & (abs(right - 0.51) < 0.05), (0.3, 0.45, 0.75)),  # window
        ((down - 0.18) ** 2 + (right - 0.83) ** 2 < 0.008, (1.0, 0.85, 0.3)),  # sun
    ]
    for inside, colour in shapes:
        picture[:, inside] = np.array(colour)[:, None]
    return picture[None].astype(np.float32)


def digit() -> NDArray[np.float32]:
    """Return one of scikit-learn's digits, a four, (1, 1, 8, 8) in [0, 1]."""
    dataset = load_dataset("digits", seed=0)
    image = dataset.train.x[np.flatnonzero(dataset.train_strata == 4)[:1]]
    return (image - image.min()) / np.ptp(image)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--picture", type=Path, required=True)
    path = parser.parse_args().picture
    rows = [(kind, drawn()) for kind in IMAGE_SHIFTS]
    rows += [(kind, digit()) for kind in IMAGE_SHIFTS if kind != "colour"]
    figure, panels = pyplot.subplots(len(rows), len(PLACES), figsize=(6.2, 8.6))
    for line, (kind, image) in zip(panels, rows, strict=True):
        line[0].set_ylabel(kind)
        for panel, place in zip(line, PLACES, strict=True):
            seen = IMAGE_SHIFTS[kind](image, place)[0]
            grey = len(seen) == 1
            panel.imshow(seen[0] if grey else np.moveaxis(seen, 0, 2), cmap="gray", vmin=0, vmax=1)
            panel.set_xticks([])
            panel.set_yticks([])
    for panel, place in zip(panels[0], PLACES, strict=True):
        panel.set_title(f"{place:+g}" if place else "0", fontsize=10)
    figure.suptitle("place of the site: from -shift-size to +shift-size", fontsize=10)
    figure.tight_layout(h_pad=0.2, w_pad=0.2)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
