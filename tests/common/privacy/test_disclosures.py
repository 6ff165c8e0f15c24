"""What a run asks of sites beyond what they release by default, and who may be taken to agree."""

import pytest
from flwr.app import Context, RecordDict

from client_app.site import open_site
from common.config import Settings
from common.messages import DISCLOSURES, RELEASES
from common.privacy.disclosures import asked
from server_app.groupings import ot_costs


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ()),
        ({"strategy": "fedsccs", "cka-probe": "client-rows"}, ("probe-rows",)),
        ({"strategy": "ot-groups"}, ("representations",)),
        (
            {"strategy": "ot-groups", "two-party": True},
            ("class-statistics", "representation-products"),
        ),
    ],
)
def test_a_run_asks_for_what_its_method_needs(settings, expected):
    assert asked(Settings.parse(settings)) == expected
    assert set(expected) <= set(DISCLOSURES)


@pytest.mark.parametrize("two_party", [False, True])
def test_groups_by_cost_need_what_is_asked_for(two_party):
    settings = Settings.parse({"strategy": "ot-groups", "two-party": two_party})
    assert ot_costs.by_cost(settings).releases == asked(settings)


@pytest.mark.parametrize("own", [{}, {"releases": "model"}])
def test_outside_of_a_simulation_a_run_opens_nothing_by_itself(own):
    settings = Settings.parse({"num-clients": 5, "strategy": "ot-groups"})
    node_config = {"partition-id": 0, "num-partitions": 5, **own}
    site = open_site(Context(1, 2, node_config, RecordDict(), settings.to_dict()))
    assert site.releases == tuple(own.get("releases", ",".join(RELEASES)).split(","))
