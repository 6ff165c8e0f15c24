"""Experiment of a paper: the options and the files that all of them have in common."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from scipy import stats

TABLES = "tables.md"
PICTURE = "picture.svg"


def experiment_parser(docstring: str | None, seeds: int) -> argparse.ArgumentParser:
    """Return a parser with ``--output``, ``--data-dir`` and ``--seeds``.

    Args:
        docstring: a module's, whose first line says what is made.
        seeds: how many there are where nothing is said.
    """
    first = (docstring or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=first)
    parser.add_argument("--output", type=Path, required=True, help="folder of all that is written")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets, where one is used")
    parser.add_argument("--seeds", type=int, default=seeds, help="0 to one less than this")
    return parser


def rank(one: Sequence[float], other: Sequence[float]) -> str:
    """Return Spearman's correlation of two sequences with its p, for a table."""
    found = stats.spearmanr(one, other)
    return f"{found.statistic:+.2f} ({p_value(found.pvalue)})"


def p_value(value: float) -> str:
    """Return a p for a table."""
    return "p < 0.001" if value < 0.001 else f"p {value:.3f}"


def write_page(folder: Path, tables: str, picture: str = "") -> None:
    """Write an experiment's tables and its picture, and say where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLES).write_text(tables.rstrip("\n") + "\n", encoding="utf-8")
    print(f"tables: {folder / TABLES}")
    if picture:
        (folder / PICTURE).write_text(picture, encoding="utf-8")
        print(f"picture: {folder / PICTURE}")
