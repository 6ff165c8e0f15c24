"""A site of secure sums that is restarted: its folder stays, and with it what it answered."""

import pytest
from flwr.app import RecordDict
from masked_sums import STEPS, Play, said

from common import messages
from common.secagg.messages import (
    MASKED,
    SECAGG_MASK,
    SECAGG_SHARE,
    SECAGG_TRAIN,
    SECAGG_UNMASK,
    SealedShares,
    SecaggDisclosure,
    SecaggKeys,
    SecaggSurvivors,
)


@pytest.fixture
def folders(tmp_path):
    """Five sites that keep what they must in folders of their own, as real ones do."""
    play = Play(tmp_path)
    for place, context in enumerate(play.grid._contexts.values()):
        context.node_config["state-dir"] = str(tmp_path / f"state-{place}")
    return play


def restart(play, site):
    """End a site's node: what was in its memory is gone, its folder stays."""
    play.grid._contexts[play.nodes[site]].state = RecordDict()


def masked_by(play, site, delivery):
    reply = play.ask(SECAGG_MASK, site, delivery)
    return messages.decode_arrays(messages.arrays_of(reply.content))[MASKED]


@pytest.mark.parametrize("last", STEPS)
def test_a_restarted_site_answers_no_step_of_a_sum_again(folders, last):
    circle = folders.circle()
    dealt = {}
    asked = {
        SECAGG_TRAIN: lambda: folders.train(0),
        SECAGG_SHARE: lambda: folders.ask(SECAGG_SHARE, 0, circle),
        SECAGG_MASK: lambda: folders.ask(SECAGG_MASK, 0, folders.delivery(dealt, 0)),
        SECAGG_UNMASK: lambda: folders.ask(
            SECAGG_UNMASK, 0, SecaggSurvivors(1, 1, 0, folders.names)
        ),
    }
    for place, name in enumerate(folders.names[1:], start=1):
        dealt[name] = SealedShares.decode(folders.ask(SECAGG_SHARE, place, circle).content)
    for kind in STEPS[1 : STEPS.index(last) + 1]:
        assert not asked[kind]().has_error()
    restart(folders, 0)
    # Twice: a step that is in its turn finds no secrets, and is not in its turn any more.
    for ask in (*asked.values(), *asked.values()):
        reason = said(ask())
        assert "out of turn" in reason or "secrets of this sum are gone" in reason
    again = SecaggKeys.decode(folders.train(0, attempt=2).content)
    assert not {*again.keys} & {circle.sealing_keys[0], circle.masking_keys[0]}


def test_a_restarted_site_masks_the_next_update_anew(folders):
    first = masked_by(folders, 0, folders.delivery(folders.dealt(folders.circle()), 0))
    restart(folders, 0)
    dealt = folders.dealt(folders.circle(attempt=2))
    second = masked_by(folders, 0, folders.delivery(dealt, 0, attempt=2))
    # Two masks of ring words agree somewhere with probability below 2^-50.
    assert not (first == second).any()


def test_no_site_tells_both_shares_of_a_peer_whatever_it_is_asked_and_when(folders):
    """Every list of survivors that is large enough, each followed by every other one."""
    names = folders.names
    lists = [names, *(sorted({*names} - {gone}) for gone in names[1:])]
    for attempt, survivors in enumerate(lists, start=1):
        dealt = folders.dealt(folders.circle(attempt=attempt))
        masked_by(folders, 0, folders.delivery(dealt, 0, attempt=attempt))
        told = SecaggDisclosure.decode(
            folders.ask(SECAGG_UNMASK, 0, SecaggSurvivors(1, attempt, 0, survivors)).content
        )
        assert sorted(told.survivors) == survivors
        assert {*told.survivors} | {*told.others} == {*names}
        assert not {*told.survivors} & {*told.others}
        for others in lists:
            assert "out of turn" in said(
                folders.ask(SECAGG_UNMASK, 0, SecaggSurvivors(1, attempt, 0, others))
            )
        restart(folders, 0)
        assert "out of turn" in said(
            folders.ask(SECAGG_UNMASK, 0, SecaggSurvivors(1, attempt, 0, lists[-1]))
        )
