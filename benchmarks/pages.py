"""Pages made of recorded runs: the tables of comparisons, put between marks of a Markdown file.

    python -m benchmarks.pages docs/results/leaderboard.md

Plays nothing. A mark names the file of a comparison, ``<!-- runs: leaderboard.toml --quick -->``;
the lines down to ``<!-- end of runs -->`` are made of what is recorded of its runs, and all others
stay as they are.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from common.errors import ComparisonError
from deploy.compare.compare import in_words, recorded_rows
from deploy.compare.grid import read_grid

HERE = Path(__file__).parent
END = "<!-- end of runs -->"
_MARK = re.compile(rf"(<!-- runs: (\S+\.toml)( --quick)? -->\n).*?({END})", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the tables of a page's recorded runs anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="Markdown file with marks")
    args = parser.parse_args(arguments)
    page = made_again(args.page.read_text("utf-8"))
    args.page.write_text(page, encoding="utf-8")


def made_again(page: str, presets: Path = HERE, records: Path = HERE / "recorded") -> str:
    """Return a page whose tables are those of the records.

    Args:
        page: Markdown with marks.
        presets: folder of the files that the marks name.
        records: folder of recorded runs.

    Raises:
        ComparisonError: the page has no mark, or nothing is recorded of a file's runs.
    """

    def tables(match: re.Match[str]) -> str:
        mark, name, quick, end = match.groups()
        grid = read_grid(presets / name, quick=bool(quick))
        rows = recorded_rows(grid, records)
        if not rows:
            raise ComparisonError(f"{records}: nothing is recorded of the runs of {name}")
        return f"{mark}\n{in_words(rows, grid)}\n\n{end}"

    made, count = _MARK.subn(tables, page)
    if not count:
        raise ComparisonError(f"the page has no mark <!-- runs: NAME.toml --> ... {END}")
    return made


if __name__ == "__main__":
    main()
