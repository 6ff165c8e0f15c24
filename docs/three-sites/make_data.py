"""Write three sites' own tables, ``python docs/three-sites/make_data.py FOLDER [SITE ...]``.

The breast-cancer table that scikit-learn brings along (569 patients, 30 features), dealt so that
the sites differ in size and in their share of malignant cases. It stands in for the sites' files.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

SITES = ("north", "east", "south")
_MALIGNANT = (0.6, 0.3, 0.1)  # share of the malignant cases that each site gets
_BENIGN = (0.2, 0.3, 0.5)


def rows_of_sites() -> dict[str, np.ndarray]:
    """Return the row numbers of each site; together they are all rows."""
    labels = load_breast_cancer().target  # 0 malignant, 1 benign
    rng = np.random.default_rng(0)
    dealt: dict[str, list[int]] = {site: [] for site in SITES}
    for label, shares in ((0, _MALIGNANT), (1, _BENIGN)):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for site, part in zip(SITES, np.split(rows, cuts), strict=True):
            dealt[site] += part.tolist()
    return {site: np.sort(rows) for site, rows in dealt.items()}


def main(folder: Path, sites: tuple[str, ...]) -> None:
    """Write ``<site>.csv`` for each site into a folder."""
    table = load_breast_cancer()
    header = [*(str(name).replace(" ", "-") for name in table.feature_names), "diagnosis"]
    folder.mkdir(parents=True, exist_ok=True)
    for site in sites:
        with (folder / f"{site}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            for row in rows_of_sites()[site]:
                diagnosis = table.target_names[table.target[row]]
                writer.writerow([*map(float, table.data[row]), diagnosis])
        print(folder / f"{site}.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]) or SITES)
