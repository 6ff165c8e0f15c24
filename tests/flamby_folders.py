"""Tiny folders of the layouts that FLamby's scripts leave behind."""

import numpy as np
from PIL import Image

ISIC_HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"


def isic_line(name, target, centre, fold):
    marks = ["1.0" if target == number else "0.0" for number in range(9)]
    return ",".join([name, *marks, str(target), str(centre), fold, f"{fold}_{centre}"])


def write_isic(root, lines, size=(210, 224)):
    """Write ``root/ISIC2019`` of these lines (name, target, centre, fold); return the folder."""
    folder = root / "ISIC2019"
    images = folder / "ISIC_2019_Training_Input_preprocessed"
    images.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, target, _, _ in lines:
        pixels = rng.integers(0, 60, (*size, 3), dtype=np.uint8)
        pixels[..., target % 3] += np.uint8(20 * target)
        Image.fromarray(pixels).save(images / f"{name}.jpg", quality=95)
    text = "\n".join([ISIC_HEADER, *(isic_line(*line) for line in lines)])
    (folder / "train_test_split").write_text(text + "\n")
    return folder


def isic_lines(per_centre=3):
    """Return lines of six centres, in each some training images and one test image."""
    return [
        (f"ISIC_{centre}{number:02d}", (centre + number) % 8, centre, fold)
        for centre in range(6)
        for number, fold in enumerate(["train"] * per_centre + ["test"])
    ]
