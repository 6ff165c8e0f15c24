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


SUBJECTS = {"Guys": range(2, 12), "HH": range(13, 21), "IOP": range(35, 41)}
"""Patients of each hospital; every fifth is for testing."""


def brain(number, shape=(20, 16, 18)):
    """Return a volume and its mask: a bright ball in noise, elsewhere for every patient."""
    rng = np.random.default_rng(number)
    axes = np.meshgrid(*(np.linspace(-1, 1, side) for side in shape), indexing="ij")
    centre = rng.uniform(-0.3, 0.3, 3)
    mask = sum((a - c) ** 2 for a, c in zip(axes, centre, strict=True)) < 0.3
    volume = 100 + 400 * mask + rng.normal(0, 40, shape)
    return volume.astype(np.float32), mask.astype(np.uint8)


def write_ixi(root, subjects=SUBJECTS):
    """Write ``root/IXITiny`` with these patients; return the folder of the subjects."""
    import nibabel

    folder = root / "IXITiny" / "7kd5wj7v7p-3" / "IXI_sample"
    folder.mkdir(parents=True)
    (folder / "IXI.xls").touch()
    lines = ["Patient ID,Manufacturer,Split"]
    for place, (hospital, numbers) in enumerate(subjects.items()):
        for position, number in enumerate(numbers):
            name = f"IXI{number:03d}-{hospital}-{800 + number:04d}"
            images = dict(zip(("T1", "label"), brain(number), strict=True))
            for kind, values in images.items():
                (folder / name / kind).mkdir(parents=True)
                what = "image" if kind == "T1" else "label"
                file = folder / name / kind / f"{name}_{what}.nii.gz"
                nibabel.save(nibabel.nifti1.Nifti1Image(values, np.eye(4)), file)
            lines.append(f"{number},{place},{'test' if position % 5 == 4 else 'train'}")
    (root / "IXITiny" / "metadata_tiny.csv").write_text("\n".join(lines) + "\n")
    return folder
