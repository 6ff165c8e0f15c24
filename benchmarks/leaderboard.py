"""Leaderboard page: what is recorded of benchmarks/leaderboard.toml, under the words of the page.

    python -m benchmarks.leaderboard --work-dir WORK

Plays nothing. The tables go below the mark in docs/results/leaderboard.md; WORK gets a page with
pictures, comparison.html.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from deploy.compare.compare import compared
from deploy.compare.grid import read_grid

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "leaderboard.md"
MARK = "<!-- what follows is made by benchmarks/leaderboard.py -->\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the tables of the runs that are recorded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work-dir", type=Path, required=True, help="folder of the comparison")
    parser.add_argument("--page", type=Path, default=PAGE, help="Markdown file to write")
    parser.add_argument("--full", action="store_true", help="the whole preset, not its quick part")
    args = parser.parse_args(arguments)
    words = [f"output-dir={args.work_dir}"]
    grid = read_grid(HERE / "leaderboard.toml", words, quick=not args.full)
    folder = compared(grid, records=HERE / "recorded", plays=False)
    _, _, tables = (folder / "table.md").read_text("utf-8").partition("\n\n")
    prose = args.page.read_text("utf-8").partition(MARK)[0]
    args.page.write_text(f"{prose}{MARK}\n{tables}", encoding="utf-8")


if __name__ == "__main__":
    main()
