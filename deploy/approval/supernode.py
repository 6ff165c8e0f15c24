"""SuperNode that runs approved code alone: Flower's own, with one question before a bundle is used.

    python -P -m deploy.approval.supernode SITE.TOML STATE-DIR WORD...

Whoever may submit a run sends a program, and so may whoever runs the server. So the question is
asked here, in a program of the site's own installation, when the bundle of a run that is new to the
site has arrived and before anything in it is read. What is not approved is answered with an error,
which the run shows; it is neither unpacked nor imported, and the next message of that run is
refused anew.
"""

import logging
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.cli.config_utils import get_fab_metadata
from flwr.common.constant import APP_DIR, ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run
from flwr.supercore.utils import get_flwr_home
from flwr.supernode import start_client_internal as flower
from flwr.supernode.cli import flower_supernode

from common.errors import ConfigError, TrustError
from deploy.approval.approved import ANY, Approved, keep, own_digest
from deploy.approval.bundle import digest_of

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Gatekeeper:
    """A site's say over bundles.

    Attributes:
        site_file: its own; read for every run, so that an approval needs no restart.
        state: its ``state-dir``.
        own: makes the digest of the installation's bundle.
    """

    site_file: Path
    state: Path
    own: Callable[[], str] = own_digest

    def check(self, fab: Fab, run: Run) -> None:
        """Refuse a bundle that may not run here.

        Raises:
            TrustError: it is not approved, or the run calls it by another name than its own, under
                which Flower would look for unpacked code.
        """
        digest = digest_of(fab.content)
        try:
            approved = Approved.read(self.site_file)
            covered = approved.covers(digest, self.own)
        except ConfigError as error:
            raise TrustError(f"this site does not know what it approved: {error}") from None
        if approved.all_may:
            return
        if not covered:
            keep(fab.content, self.state)
            raise TrustError(
                f"this site runs approved code only, and the run's bundle sha256 {digest} is not; "
                f"its owner can look at it and approve it: coterie approve {digest[:12]} "
                f"--config {self.site_file.name}"
            )
        named = (run.fab_id, run.fab_version, run.fab_hash)
        if named != (*get_fab_metadata(fab.content), digest):
            raise TrustError(f"the run calls its bundle {named}, which is not what it is")


def guarded(pull: Callable[..., int | None], gatekeeper: Gatekeeper) -> Callable[..., int | None]:
    """Return Flower's step that takes a message in, for approved bundles alone.

    Args:
        pull: that step, ``start_client_internal._pull_and_store_message``.
        gatekeeper: knows what is approved.
    """

    def pulling(**given: Any) -> int | None:
        arrived: list[Message] = []
        runs: dict[int, Run] = {}

        def receive() -> Any:
            received = given["receive"]()
            arrived.extend(received[:1] if received else ())
            return received

        def get_run(run_id: int) -> Run:
            runs[run_id] = given["get_run"](run_id)
            return runs[run_id]

        def get_fab(fab_hash: str, run_id: int) -> Fab:
            fab: Fab = given["get_fab"](fab_hash, run_id)
            gatekeeper.check(fab, runs[run_id])
            return fab

        own: Mapping[str, Any] = {"receive": receive, "get_run": get_run, "get_fab": get_fab}
        try:
            return pull(**{**given, **own})
        except TrustError as error:
            [message] = arrived
            log.error("run %s refused: %s", message.metadata.run_id, error)
            reply = Message(Error(ErrorCode.INVALID_FAB, str(error)), reply_to=message)
            flower._insert_message(reply, given["state"], given["object_store"])
            return message.metadata.run_id

    return pulling


def main() -> None:
    """Be Flower's SuperNode."""
    site_file, state = map(Path, sys.argv[1:3])
    # Flower finds what it unpacked by 8 digits of a bundle's digest, for which another one can be
    # made. What lies there may be older than this site's approvals.
    shutil.rmtree(get_flwr_home() / APP_DIR, ignore_errors=True)
    if Approved.read(site_file).all_may:
        log.warning(
            "this site runs whatever code is sent to it: approved = %r in %s", ANY, site_file
        )
    gatekeeper = Gatekeeper(site_file, state)
    flower._pull_and_store_message = guarded(flower._pull_and_store_message, gatekeeper)
    sys.argv = ["flower-supernode", *sys.argv[3:]]
    flower_supernode()


if __name__ == "__main__":
    main()
