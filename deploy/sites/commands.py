"""Commands of a real federation: provision, site, serve, register, submit, doctor."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from common import config
from common.config.completion import complete


def completed(context: typer.Context, incomplete: str) -> list[str]:
    """Return what the word at the cursor can become: a setting, or a setting's value."""
    return complete(list(context.params.get("words") or ()), incomplete)


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="settings; coterie settings lists them",
        autocompletion=completed,
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings; words go over it")
]
ServerFolder = Annotated[
    Path, typer.Argument(metavar="SERVER", help="the server's folder that provisioning wrote")
]


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


LogOption = Annotated[LogFormat, typer.Option("--log-format", help="json: one object per line")]

site_app = typer.Typer(help="Make a site's keys, and start it.", invoke_without_command=True)


def provision(
    plan: Annotated[Path, typer.Argument(metavar="SITES.TOML", help="who takes part, and where")],
    output: Annotated[
        Path | None, typer.Option(help="where the folders go; else provision/ beside the file")
    ] = None,
) -> None:
    """Make certificates and one folder per recipient; run it again to add sites or change keys."""
    from deploy.sites import provision as provisioning

    read = provisioning.FederationPlan.read(plan)
    done = provisioning.write_folders(read, output or plan.absolute().parent / "provision")
    typer.echo("\n".join(done) or "nothing changed")


@site_app.callback()
def site(
    context: typer.Context,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="the site's own file, site.toml")
    ] = None,
    log_format: LogOption = LogFormat.TEXT,
) -> None:
    """Start a site with its own data."""
    if context.invoked_subcommand is not None:
        return
    if config_file is None:
        raise typer.BadParameter("name the site's own file", param_hint="--config")
    from client_app import prepared_data
    from deploy.sites import flower
    from deploy.sites.site import Node, SiteFile

    own = SiteFile.read(config_file)
    dataset = prepared_data.prepare(own)
    typer.echo(
        f"site {own.site}: {len(dataset.train_y)} training and {len(dataset.test_y)} held-out "
        f"rows of {dataset.num_classes} classes ({', '.join(dataset.class_names)})",
        err=True,
    )
    node = Node.of(own)
    flower.become(node.command, node.env, source=f"site {own.site}", log=log_format)


@site_app.command("init")
def site_init(
    name: Annotated[str, typer.Argument(metavar="SITE", help="the site's id")],
    folder: Annotated[
        Path | None, typer.Option(help="the site's own folder; else one of the site's name")
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="the file to be sent; else SITE.public.toml in the folder")
    ] = None,
    rotate: Annotated[bool, typer.Option(help="make another SuperNode key")] = False,
) -> None:
    """Make a site's keys on the site; only the public file it names is to be sent."""
    from deploy.sites import site_keys

    own = (folder or Path(name)).absolute()
    sent = (public or own / f"{name}.public.toml").absolute()
    keys = site_keys.init(name, own, public_file=sent, rotate=rotate)
    typer.echo(f"send to whoever provisions: {sent}")
    typer.echo(f"SuperNode key: {keys.supernode_fingerprint}")
    typer.echo(f"identity, to be read out to the other sites: {keys.identity_fingerprint}")


def serve(
    folder: ServerFolder,
    host: Annotated[str, typer.Option(help="address to listen on")] = "0.0.0.0",  # noqa: S104
    admin: Annotated[
        list[str] | None,
        typer.Option(help="a network, as 10.1.2.0/24, that may submit runs beside this machine"),
    ] = None,
    log_format: LogOption = LogFormat.TEXT,
) -> None:
    """Start the SuperLink, with TLS, node keys and a database file."""
    from deploy.sites import flower
    from deploy.sites.serve import Server

    server = Server.open(folder)
    command = server.command(host, tuple(admin or ()))
    flower.become(command, server.env(), source="superlink", log=log_format)


def register(folder: ServerFolder) -> None:
    """Let the SuperLink know whose keys are provisioned, and whose are revoked."""
    from deploy.sites import serve as serving

    server = serving.Server.open(folder)
    done = serving.register(server, server.connection())
    typer.echo("\n".join(done) or "nothing changed")


def submit(folder: ServerFolder, words: Words = None, config_file: ConfigFile = None) -> None:
    """Send a run to the SuperLink and follow it; exit code 0 completed, 1 failed, 3 stopped."""
    from deploy.sites import submit as submitting
    from deploy.sites.serve import Server
    from server_app.methods import build

    server = Server.open(folder)
    settings = config.load(config_file, words or (), server.usual_settings)
    build(settings)
    raise typer.Exit(submitting.send(settings, server.connection()))


def doctor(
    server: Annotated[
        Path | None, typer.Option(help="the server's folder that provisioning wrote")
    ] = None,
    site_file: Annotated[Path | None, typer.Option("--site", help="a site's site.toml")] = None,
) -> None:
    """Check versions, ports, certificates, data, device, disk and clock, and say what to do."""
    from deploy.sites.doctor import Readiness, examine

    failed = 0
    for finding in examine(server, site_file):
        typer.echo(str(finding))
        failed += finding.verdict is Readiness.FAIL
    raise typer.Exit(1 if failed else 0)
