"""Messy hospitals: four tables about the same disease, each written in its own way."""

import numpy as np

HOSPITALS = ("north.csv", "south.csv", "east.tsv", "west.csv")
FEATURES = ("age", "sex", "pressure", "oldpeak", "visit")


def write(folder, *, rows=120, seed=0):
    """Write four files with an id, dates, texts, missing values; return their paths.

    The second has semicolons, decimal commas, another order of columns and is no UTF-8; the third
    tabs and other words; the fourth a column that no other has. Sick are those of a high pressure.
    """
    rng = np.random.default_rng(seed)
    paths = []
    for place, name in enumerate(HOSPITALS):
        pressure = rng.normal(130 + 3 * place, 15, rows).round()
        sick = pressure + rng.normal(0, 6, rows) > 130
        columns = {
            "patient_id": [f"{1000 * place + n}" for n in range(1, rows + 1)],
            "age": [f"{age}" for age in rng.integers(30, 80, rows)],
            "sex": [("female", "male")[int(sex)] for sex in rng.integers(0, 2, rows)],
            "pressure": [f"{value:.0f}" for value in pressure],
            "oldpeak": [f"{value:.1f}" for value in rng.exponential(1.0, rows)],
            "visit": [f"2019-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(rows)],
            "sick": [("no", "yes")[int(each)] for each in sick],
        }
        missing = ("", "?", "n/a", "NA")[place]
        for row in rng.choice(rows, rows // 10, replace=False):
            columns["oldpeak"][row] = missing
        separator, encoding = ",", "utf-8"
        if place == 1:
            separator, encoding = ";", "cp1252"
            columns["oldpeak"] = [cell.replace(".", ",") for cell in columns["oldpeak"]]
            columns["visit"] = [".".join(reversed(day.split("-"))) for day in columns["visit"]]
            columns = dict(reversed(columns.items()))
        elif place == 2:
            separator = "\t"
            columns["sex"] = [word[0].upper() for word in columns["sex"]]
        elif place == 3:
            columns["ward"] = [("A", "B")[n % 2] for n in range(rows)]
        lines = [separator.join(columns)]
        lines += [separator.join(cells) for cells in zip(*columns.values(), strict=True)]
        path = folder / name
        path.write_text("\n".join(lines) + "\n", encoding=encoding)
        paths.append(path)
    return paths
