"""A site's side of secure products: fresh keys, sealed openings, masked shares, and no step twice.

The protocol is that of :mod:`common.secure_product`; all pairs of a run play it together. Rows,
seeds and keys are forgotten as soon as no step needs them.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from client_app import site_config
from client_app.product_rows import Material, material
from client_app.site import Site, require
from client_app.steps import Steps
from client_app.trust import identity_of, trusted_by
from common import messages
from common import secure_product as secure
from common.errors import BudgetError, MessageError, TrustError
from common.identity import Channel, EphemeralKey, Occasion, packed
from common.messages import Parameters, ReleaseNote
from common.product_messages import (
    Product,
    ProductDeal,
    ProductOffer,
    ProductOrder,
    ProductStep,
    occasion_of,
)
from common.ring import FRACTION_BITS, Words
from common.secure_product import Shape

log = logging.getLogger("coterie")

_KEYS = ReleaseNote("fresh public key, signed")
_SEALED = ReleaseNote("sealed for other sites: the server cannot read it")
_SHARED = ReleaseNote(
    "masked: it gives a product only together with the other site's answer, within 2^-20; no "
    "differential privacy"
)


def keys(message: Message, site: Site, context: Context) -> Message:
    """Make a fresh key, keep the rows to be multiplied, and say how many there are."""
    return _answer(1, message, site, context, _offer)


def open_rows(message: Message, site: Site, context: Context) -> Message:
    """Send every peer this site's rows under the dealt factor, sealed."""
    return _answer(2, message, site, context, _openings)


def share(message: Message, site: Site, context: Context) -> Message:
    """Send the server this site's share of every product."""
    return _answer(3, message, site, context, _shares)


def _answer(
    step: int,
    message: Message,
    site: Site,
    context: Context,
    work: "Callable[[_Party, RecordDict], RecordDict]",
) -> Message:
    """Answer a step, if the site's owner lets it be a party."""
    order = ProductOrder.decode(message.content)
    require(site, order.purpose)
    if site.budget.bounded:
        raise BudgetError(
            f"this site has a privacy budget (privacy-epsilon = {site.budget.epsilon:g}), and no "
            "epsilon holds for two-party products: run without them"
        )
    if site_config.from_node_config(context.node_config).coordinator_is_site:
        raise TrustError(
            "coordinator-is-site: whoever runs the server holds a site's rows, too, and with them "
            "could work out those of all others; let somebody else run the server, or do without "
            "two-party products"
        )
    party = _Party(site, context, order)
    # Once per run, whatever the round: another product of the same rows would halve the noise.
    steps = Steps(context, order.purpose)
    return steps.answer(step, message, lambda: work(party, message.content))


def _offer(party: "_Party", _: RecordDict) -> RecordDict:
    held = material(party.order.purpose, party.site)
    key = EphemeralKey.generate()
    signed = identity_of(party.site.keeper).sign(party.name, party.occasion, [key.public])
    offer = ProductOffer(
        site=party.name,
        identity_key=signed.identity_key,
        key=key.public,
        signature=signed.signature,
        width=held.width,
        numbers=list(held.left),
        rows=[len(rows) for rows in held.left.values()],
    )
    party.keep("offer", ConfigRecord({"private": key.private, **asdict(offer)}))
    party.keep("rows", messages.encode_arrays(held.as_arrays()))
    return _content(offer, _KEYS)


def _openings(party: "_Party", content: RecordDict) -> RecordDict:
    deal = ProductDeal.decode(content)
    party.check(deal)
    held = Material.of_arrays(party.kept_arrays("rows"), party.offer.width)
    corrections = messages.decode_arrays(messages.arrays_of(content))
    kept: dict[str, Words] = {}
    sealed: dict[str, np.ndarray] = {}
    for place, product in deal.products.items():
        own = party.drawn(product, held)
        shape = party.shape(product)
        if party.is_left(product):
            opening = secure.left_opening(own, product.seed, shape)
        else:
            opening = secure.right_opening(own, product.seed, shape)
            kept[f"{place}.rows"] = own
            kept[f"{place}.correction"] = corrections[place]
        sealed[place] = _seal(party.channel(product.peer, deal), opening, product, shape)
    party.keep("deal", deal.encode())
    party.keep("rows", messages.encode_arrays(kept))
    return _content(ProductStep(party.name), _SEALED, sealed)


def _shares(party: "_Party", content: RecordDict) -> RecordDict:
    kept, opened = party.kept_arrays("rows"), messages.decode_arrays(messages.arrays_of(content))
    deal = ProductDeal.decode(RecordDict({messages.RECORD: party.kept("deal")}))
    found = {}
    for place, product in deal.products.items():
        if place not in opened:
            raise MessageError(f"{product.peer!r} sent no opening for {product.number}")
        channel, shape = party.channel(product.peer, deal), party.shape(product)
        data = channel.unseal(
            opened[place].tobytes(), "opening", product.number, _header("opening", shape)
        )
        mask_seed = channel.shared_key("mask", product.number)
        if party.is_left(product):
            opening = _words(data, shape.right)
            hidden = secure.noise(shape)
            found[place] = secure.left_share(product.seed, opening, mask_seed, hidden, shape)
        else:
            own, correction = kept[f"{place}.rows"], kept[f"{place}.correction"]
            opening = _words(data, shape.left)
            found[place] = secure.right_share(own, correction, opening, mask_seed, shape)
    party.forget("offer", "rows", "deal")
    return _content(ProductStep(party.name), _SHARED, found)


@dataclass(frozen=True)
class _Party:
    """A site in the products of one purpose, with what it keeps between the steps."""

    site: Site
    context: Context
    order: ProductOrder

    @property
    def name(self) -> str:
        """The site's id."""
        return self.site.name

    @property
    def occasion(self) -> Occasion:
        """What keys are signed for."""
        return occasion_of(self.order, self.context.run_id)

    @cached_property
    def offer(self) -> ProductOffer:
        """What the site offered in step 1."""
        return ProductOffer.decode(RecordDict({messages.RECORD: self.kept("offer")}))

    def check(self, deal: ProductDeal) -> None:
        """Refuse peers that this site does not trust, and a product asked for twice."""
        pins = trusted_by(self.context)
        for name, signed in deal.signed.items():
            pins.check(signed, name, self.occasion)
            if pins.fingerprints and not pins.pinned(name):
                log.warning("%s is not pinned here: the server could have made its key", name)
        asked = [(product.peer, product.number) for product in deal.products.values()]
        if len(set(asked)) < len(asked):
            raise TrustError("a product is asked for twice, which would halve its noise")

    def is_left(self, product: Product) -> bool:
        """Return whether this site's rows are the left factor: of two names the first is."""
        return self.name < product.peer

    def drawn(self, product: Product, held: Material) -> Words:
        """Return this site's rows for a product, in an order of their own."""
        side = held.left if self.is_left(product) else held.right
        if product.number not in side:
            raise MessageError(f"this site offered no rows of {product.number}")
        rows = side[product.number]
        return rows[secure.shuffled(len(rows))]

    def shape(self, product: Product) -> Shape:
        """Return the shape of a product, as this site sees it."""
        own = dict(zip(self.offer.numbers, self.offer.rows, strict=True))[product.number]
        sizes = (own, product.rows) if self.is_left(product) else (product.rows, own)
        return Shape(sizes[0], self.offer.width, sizes[1])

    def channel(self, peer: str, deal: ProductDeal) -> Channel:
        """Return the channel to another site, whose keys were checked."""
        if peer not in deal.signed:
            raise MessageError(f"no keys of {peer!r} came with the deal")
        private = self.kept("offer")["private"]
        assert isinstance(private, bytes)
        key = EphemeralKey(private)
        return Channel.between(key, self.offer.signed, deal.signed[peer], self.occasion)

    # Kept in Context.state ---------------------------------------------------------------------

    def keep(self, name: str, record: ConfigRecord | ArrayRecord) -> None:
        """Keep a record until the next step, or until it is forgotten."""
        self.context.state[self._key(name)] = record

    def kept(self, name: str) -> ConfigRecord:
        """Return a record that was kept."""
        return self.context.state.config_records[self._key(name)]

    def kept_arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return arrays that were kept."""
        return messages.decode_arrays(self.context.state.array_records[self._key(name)])

    def forget(self, *names: str) -> None:
        """Forget what no step needs any more."""
        for name in names:
            del self.context.state[self._key(name)]

    def _key(self, name: str) -> str:
        return f"{self.order.purpose}/kept/{name}"


def _content(
    record: ProductOffer | ProductStep, note: ReleaseNote, arrays: Parameters | None = None
) -> RecordDict:
    encoded = None if arrays is None else messages.encode_arrays(arrays)
    result = messages.content(record, encoded)
    result[messages.NOTE] = note.encode()
    return result


def _seal(channel: Channel, opening: Words, product: Product, shape: Shape) -> np.ndarray:
    data = opening.astype("<u8").tobytes()
    sealed = channel.seal(data, "opening", product.number, _header("opening", shape))
    return np.frombuffer(sealed, dtype=np.uint8)


def _header(step: str, shape: Shape) -> bytes:
    """Return what both ends of a channel must agree on beside the keys."""
    return packed(step, shape.rows, shape.width, shape.columns, FRACTION_BITS)


def _words(data: bytes, shape: tuple[int, int]) -> Words:
    if len(data) != 8 * shape[0] * shape[1]:
        raise MessageError(f"an opening of {len(data)} bytes is not of shape {shape}")
    return np.frombuffer(data, dtype="<u8").astype(np.uint64).reshape(shape)
