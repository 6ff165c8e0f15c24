"""Commands of tables: what stands between files and a federation, and the schema that mends it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigError

if TYPE_CHECKING:
    from common.tables.table_schema import TableProposal

__all__ = ["data_app"]

data_app = typer.Typer(help="Check tables, and make the schema that a federation reads them by.")

PROBLEMS = 3
"""Exit code of a check that found any."""

Output = Annotated[Path, typer.Option(help="where the schema goes; a free name beside it if taken")]


@data_app.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="tables: .csv, .tsv (.gz), .parquet")],
    label_column: Annotated[
        str, typer.Option(help="what is to be learned; else a usual name that the files share")
    ] = "",
    against: Annotated[
        Path | None, typer.Option(help="the federation's schema, which says what is in order")
    ] = None,
    output: Output = Path("schema.toml"),
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """List all problems of all files at once, and propose a schema that mends them.

    Exit code: 0 nothing to mend, 3 problems, 2 a file that cannot be read.
    """
    from common.tables.checking import check_against, check_files
    from common.tables.table_schema import TableSchema

    schema: Path | None
    if against is not None:
        problems = check_against(files, TableSchema.read(against))
        schema, why = against.absolute(), []
    else:
        found = check_files(files, label_column)
        problems = found.problems
        schema, why = _written(found.proposal, output), _lacks(found.proposal)
    if as_json:
        record = {
            "problems": [vars(problem) for problem in problems],
            "schema": None if schema is None else str(schema),
        }
        typer.echo(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        for problem in problems:
            typer.echo(str(problem))
        for line in why:
            typer.echo(f"not enough yet: {line}")
        typer.echo(f"schema: {schema}")
    raise typer.Exit(PROBLEMS if problems else 0)


@data_app.command()
def merge(
    proposals: Annotated[
        list[Path], typer.Argument(help="what coterie data check proposed at each site")
    ],
    output: Output = Path("federation.toml"),
) -> None:
    """Join the sites' proposals into one schema for all of them; no rows are needed."""
    from common.tables.proposing import joined
    from common.tables.table_schema import TableProposal

    schema = joined([TableProposal.read(path) for path in proposals]).complete()
    for column in schema.columns:
        typer.echo(f"{column.name}: {column.kind}" + (f", {column.drop}" if column.drop else ""))
    typer.echo(f"schema: {_written(schema, output)}")


def _lacks(proposal: "TableProposal") -> list[str]:
    """Return what a proposal lacks to be a schema."""
    try:
        proposal.complete()
    except ConfigError as error:
        return str(error).splitlines()
    return []


def _written(schema: "TableProposal", output: Path) -> Path:
    """Write a schema under a name that is free, and return its path."""
    path = output.absolute()
    number = 2
    while path.exists():
        path = output.absolute().with_stem(f"{output.stem}-{number}")
        number += 1
    path.write_text(schema.to_toml(), encoding="utf-8")
    return path
