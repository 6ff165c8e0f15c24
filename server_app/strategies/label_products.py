"""Label products: numbers about the labels of every two sites, which these compute together."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.serverapp import Grid

from common.config import Settings
from common.errors import RoundError
from common.two_party.label_products import INNER_PRODUCT, LABEL_PRODUCTS
from common.two_party.messages import LABEL_SHARES, PRODUCTS, TwoPartyOrder
from common.two_party.protocol import largest_error
from server_app.dissimilarity import FloatArray
from server_app.methods import Method
from server_app.protection.two_party import check_sizes, two_party_products
from server_app.record.checkpoint import State
from server_app.record.run_folder import RunFolder
from server_app.rounds.roster import Roster
from server_app.selection.rules import View
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")


class LabelPairs(FederatedTraining):
    """Plays rounds with what every two sites computed together before the first one.

    No histogram leaves a site. A site that joins late has no part in it and is left out.
    """

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Let back in who was there before; leave out who was not when products were taken."""
        back = [site for site, name in enumerate(newcomers.names) if name in self.roster.names]
        for name in newcomers.names:
            if name not in self.roster.names:
                log.warning("%s joined but is left out: label products were taken before", name)
        return newcomers.subset(back) if back else None

    def of_pairs(self, purpose: str, product: str, grid: Grid, timeout: float) -> FloatArray:
        """Return what a row of ``LABEL_PRODUCTS`` tells of every two sites, (n, n) symmetric.

        The diagonal is what the sites tell of themselves, else 0.

        Raises:
            ConfigError: a site too small for the run's epsilon, before anybody is asked.
        """
        rows = {site.site: site.num_examples for site in self.roster.sites}
        check_sizes({purpose}, rows, self.settings)
        order = TwoPartyOrder(purpose=purpose, round=0, reveal=PRODUCTS)
        products = two_party_products(order, self.roster, grid, timeout)
        found = np.zeros((len(self.roster), len(self.roster)))
        for (left, right, _), value in products.values.items():
            found[left, right] = found[right, left] = value.item()
        told = LABEL_PRODUCTS[product].distance(found, self.roster.sites[0].num_classes)
        np.fill_diagonal(told, 0.0)
        for site, offer in enumerate(products.offers):
            told[site, site] = sum(offer.own)
        return told


class LabelProducts(LabelPairs):
    """Shows the selection the inner products of the sites' label counts."""

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        self._shares_gram = np.empty((0, 0), dtype=np.float64)

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Have every two sites multiply their label shares.

        Raises:
            RoundError: products that no label shares have.
        """
        found = self.of_pairs(LABEL_SHARES, INNER_PRODUCT, grid, timeout)
        check_products(found, self.roster.names, self.roster.sites[0].num_classes)
        self._shares_gram = found

    def shown(self, view: View) -> View:
        """Add the inner products of the counts: numbers of rows are public."""
        rows = view.num_examples
        return replace(view, label_products=self._shares_gram * np.outer(rows, rows))

    def state(self) -> State:
        """Return the products, too."""
        return {**super().state(), "shares-gram": self._shares_gram}

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the products taken before; nobody is asked again."""
        super().restore(state, grid, timeout)
        self._shares_gram = state["shares-gram"]


def check_products(gram: FloatArray, names: Sequence[str], num_classes: int) -> None:
    """Refuse inner products that no label shares have: theirs make no negative square.

    A site can say one thing of itself and multiply another. Beyond what fixed point and noise may
    do to the products, weights of a cohort could not be worked out from them.

    Args:
        gram: (n, n) of the sites' label shares, symmetric.
        names: of the sites.
        num_classes: K.

    Raises:
        RoundError: with the sites without any one of which the others' products do.
    """
    # A symmetric error of at most e in each entry moves no eigenvalue by more than n e.
    least = -len(gram) * largest_error(num_classes)
    if np.linalg.eigvalsh(gram)[0] >= least:
        return
    rest = (np.delete(np.delete(gram, site, 0), site, 1) for site in range(len(gram)))
    suspects = [
        name for name, kept in zip(names, rest, strict=True) if np.linalg.eigvalsh(kept)[0] >= least
    ]
    who = f"those of {' or '.join(suspects)}" if suspects else "those of several"
    raise RoundError(
        f"the products of the sites' labels are of no labels: {who} are wrong; repair or leave "
        "out the site, and start a new run"
    )
