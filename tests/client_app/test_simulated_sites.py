import pytest

from client_app.simulated_sites import SIMULATION, drawn_rate, released
from client_app.site_config import SiteConfig
from common.config import Settings
from common.messages import RELEASES
from common.privacy.disclosures import asked

PROBED = Settings.parse({"strategy": "ot-groups"})
OWN = SiteConfig()


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nobody_who_did_not_say_that_this_is_a_simulation_opens_a_site(monkeypatch, value):
    monkeypatch.delenv(SIMULATION, raising=False)
    if value is not None:
        monkeypatch.setenv(SIMULATION, value)
    assert released(OWN, {"partition-id": 0}, PROBED) == RELEASES


def test_sites_of_a_simulation_release_what_the_run_needs_unless_they_have_a_say(monkeypatch):
    monkeypatch.setenv(SIMULATION, "1")
    assert released(OWN, {}, asked(PROBED)) == (*RELEASES, "representations")
    assert released(OWN, {}, asked(Settings())) == RELEASES
    closed = {"releases": "model"}
    assert released(SiteConfig.parse(closed), closed, asked(PROBED)) == ("model",)


def test_a_link_is_drawn_from_the_seed_and_the_name_within_what_the_settings_say():
    settings = Settings.parse({"link-rate": "6-54"})
    rates = [drawn_rate(f"site-{place}", settings) for place in range(20)]
    assert all(6 <= rate <= 54 for rate in rates)
    assert len(set(rates)) > 1
    assert rates == [drawn_rate(f"site-{place}", settings) for place in range(20)]
    assert drawn_rate("site-0", Settings()) == 0
