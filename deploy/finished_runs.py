"""Commands that look at finished runs: the model for a new site, the gain over training alone."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["RunArgument", "against_local", "assign"]

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run")]


def assign(
    run: Annotated[Path, typer.Argument(help="folder of a run of strategy=fedsccs")],
    model: Annotated[
        Path,
        typer.Argument(help="the new site's model: models/shared.safetensors after one local pass"),
    ],
) -> None:
    """Say which of a run's models fits a site that joins now."""
    from server_app.record import using_models

    found = using_models.assign(run.absolute(), using_models.read_model(model))
    for cluster, similarity in enumerate(found.similarities):
        typer.echo(f"cluster {cluster}: mean CKA {similarity:.3f}")
    typer.echo(f"model: {found.model}")


def against_local(
    run: RunArgument,
    local: Annotated[
        Path, typer.Argument(help="folder of a run of objective=local, else of equal settings")
    ],
    fine_tuned: Annotated[
        bool, typer.Option("--fine-tuned", help="count what fine-tuning made of the run's models")
    ] = False,
) -> None:
    """Say what a run gave each site over training alone, and put it into the run's report."""
    from server_app.record import change_to_local
    from server_app.record.run_folder import RunFolder
    from server_app.report import report

    changes = change_to_local.changes_to_local(run, local, tuned=fine_tuned)
    for name, site in changes.sites.items():
        typer.echo(f"{name}: {site.change:+.1f} % ({site.local:.4f} alone, {site.accuracy:.4f})")
    typer.echo(f"mean: {changes.mean:+.1f} %")
    change_to_local.write(run, changes)
    report.write_report(RunFolder(run))
