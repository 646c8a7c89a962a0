from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.options import FOLDER
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.runtimes.silo.keys import REVOKED, require

IN = click.option(
    "--certs", "folder", type=FOLDER, metavar="DIR", default="certs", show_default=True, help="Certificate folder."
)
NAMES = click.argument("names", metavar="NAME...", nargs=-1, required=True)
DAYS = click.option("--days", type=click.IntRange(1, 36_500), default=825, show_default=True, help="Days until expiry.")
ENCRYPT = click.option("--encrypt", is_flag=True, help="Encrypt the keys with a passphrase.")


def _server(default: str) -> Callable[..., Any]:
    text = f"Name or IP address at which silos reach the server; repeatable.  [default: {default}]"
    return click.option("--server", "hosts", multiple=True, metavar="HOST", help=text)


@click.group("certs")
def certs_group() -> None:
    """Make, renew and revoke certificates for runs across machines."""


@certs_group.command("new")
@click.option("--silos", required=True, type=click.IntRange(1, 100_000), help="Number of silos.")
@click.option("--out", type=FOLDER, metavar="DIR", default="certs", show_default=True, help="Folder to write.")
@_server("only this machine")
@DAYS
@click.option("--add", is_flag=True, help="Keep the files in DIR and add missing ones; needs the authority's key.")
@ENCRYPT
def new(*, silos: int, out: Path, hosts: tuple[str, ...], days: int, add: bool, encrypt: bool) -> None:
    """Create an authority, and certificates for the server and the silos."""
    require()
    from fl_labelskew_plugins.runtimes.silo import certs

    written = certs.new(out, silos, hosts, days=days, add=add, encrypt=encrypt)
    click.echo(f"written to {out}: {', '.join(written) or 'nothing, all files exist'}")
    for name in written:
        if name != "ca":
            click.echo(f"to {_host_of(name)}: ca.pem {name}.pem {name}.key")
    if "ca" in written:
        click.echo("do not copy ca.key to these machines: anyone who has ca.key can impersonate everyone")


@certs_group.command("renew")
@NAMES
@IN
@_server("as before")
@DAYS
@ENCRYPT
def renew(*, names: tuple[str, ...], folder: Path, hosts: tuple[str, ...], days: int, encrypt: bool) -> None:
    """Replace certificates, each with a new key.

    NAME is server, silo-1 and so on, or all.
    """
    require()
    from fl_labelskew_plugins.runtimes.silo import certs

    for name in certs.renew(folder, names, hosts, days=days, encrypt=encrypt):
        click.echo(f"to {_host_of(name)}, which uses them after its next start: {name}.pem {name}.key")
    until = "the old certificates stay valid until they expire"
    click.echo(f"{until}; to end that earlier: `labelskew certs revoke NAME`, then renew again")


@certs_group.command("revoke")
@NAMES
@IN
def revoke(*, names: tuple[str, ...], folder: Path) -> None:
    """Add certificates to the signed list of revoked ones.

    NAME is server, silo-1 and so on, or all.
    """
    require()
    from fl_labelskew_plugins.runtimes.silo import certs

    listed, new = certs.revoke(folder, names)
    path = folder / REVOKED
    if new:
        click.echo(f"written to {path}: {listed}, {new} of them new")
        click.echo("to the server's host and every silo, next to their certificates: " + REVOKED)
    else:
        click.echo(f"written to {path}: nothing, all of them are listed already")


@certs_group.command("show")
@click.argument("folder", metavar="DIR", type=FOLDER)
def show(folder: Path) -> None:
    """Show the owners, expiry dates and SHA-256 fingerprints of the certificates in DIR."""
    require()
    from fl_labelskew_plugins.runtimes.silo import certs

    rows, listed, warnings = certs.show(folder)
    click.echo(table.plain(certs.SHOWN, rows))
    if listed.number:
        click.echo(f"{REVOKED}: {listed}")
    for warning in warnings:
        log.warn(warning)


def _host_of(name: str) -> str:
    return "the server's host" if name == "server" else name.replace("-", " ")
