"""Pages made of recorded runs: the tables of comparisons, put between marks of a Markdown file.

    python -m benchmarks.pages docs/results/leaderboard.md --work-dir WORK

Plays nothing. A mark names the file of a comparison, ``<!-- runs: leaderboard.toml --quick -->``;
the lines down to ``<!-- end of runs -->`` are made of what is recorded of its runs, and all others
stay as they are. WORK gets each comparison's page with pictures, comparison.html.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from common.errors import ComparisonError
from deploy.compare.compare import compared
from deploy.compare.grid import read_grid

HERE = Path(__file__).parent
END = "<!-- end of runs -->"
_MARK = re.compile(rf"(<!-- runs: (\S+\.toml)( --quick)? -->\n).*?({END})", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the tables of a page's recorded runs anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="Markdown file with marks")
    parser.add_argument("--work-dir", type=Path, required=True, help="folder of the comparisons")
    args = parser.parse_args(arguments)
    page = made_again(args.page.read_text("utf-8"), args.work_dir)
    args.page.write_text(page, encoding="utf-8")


def made_again(
    page: str, work: Path, presets: Path = HERE, records: Path = HERE / "recorded"
) -> str:
    """Return a page whose tables are those of the records.

    Args:
        page: Markdown with marks.
        work: folder of the comparisons.
        presets: folder of the files that the marks name.
        records: folder of recorded runs.

    Raises:
        ComparisonError: the page has no mark, or nothing is recorded of a file's runs.
    """

    def tables(match: re.Match[str]) -> str:
        mark, name, quick, end = match.groups()
        words = [f"output-dir={work / ('quick' if quick else 'full')}"]
        grid = read_grid(presets / name, words, quick=bool(quick))
        text = (compared(grid, records=records, plays=False) / "table.md").read_text("utf-8")
        _, _, below_the_title = text.partition("\n\n")
        return f"{mark}\n{below_the_title.strip()}\n\n{end}"

    made, count = _MARK.subn(tables, page)
    if not count:
        raise ComparisonError(f"the page has no mark <!-- runs: NAME.toml --> ... {END}")
    return made


if __name__ == "__main__":
    main()
