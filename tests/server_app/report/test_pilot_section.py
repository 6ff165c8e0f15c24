"""The pilot on the precheck's page and in a terminal: in words that nobody must look up."""

import pytest

from server_app.record.pilot_format import PilotCandidate, PilotChange, PilotRecord, PilotSite
from server_app.report import pilot_section
from server_app.report.precheck_words import MINUS, candidate_words, points, told_by_pilot


def site(name, verdict, change, half, *, recommended="fedavg", held_out=120, needs=""):
    of = PilotChange("fedavg", 0.8, change, change - half, change + half, measured=change)
    return PilotSite(
        site=name,
        verdict=verdict,
        about="fedavg",
        recommended=recommended,
        metric="accuracy",
        held_out=held_out,
        units=held_out,
        alone=0.8,
        needs=needs,
        changes=(of,),
    )


def pilot(*sites, skipped=()):
    every = PilotCandidate("fedavg", "one model for all (FedAvg)", 1.0, -0.5, 2.5)
    return PilotRecord(3, 5, 20, (5,), 9.0, "local", skipped, (every,), sites)


THREE = pilot(
    site("north", "beneficial", 3.0, 1.0),
    site("south", "detrimental", -12.0, 4.0, recommended="local"),
    site("<b>", "uncertain", 0.5, 4.0, held_out=13, needs="about 900 rows to judge by, of 13 now"),
)


def test_each_site_is_told_its_change_the_way_and_what_to_try():
    north, south, unclear = pilot_section.lines(THREE)
    assert north.told == "gains +3.0 (+2.0 to +4.0) points by one model for all (FedAvg)"
    assert (
        south.told
        == "loses: -12.0 (-16.0 to -8.0) points by one model for all (FedAvg)".replace("-", MINUS)
    )
    assert (north.recommended, south.recommended) == (
        "one model for all (FedAvg)",
        "training alone",
    )
    assert unclear.told.endswith("it needs about 900 rows to judge by, of 13 now")


def test_a_site_without_figures_is_told_why():
    words = candidate_words(THREE)
    bare = PilotSite(
        site="few",
        verdict="nothing to compare",
        about="fedavg",
        recommended="local",
        metric="accuracy",
        held_out=0,
        units=0,
        needs="no class has two rows that could be held out",
    )
    assert told_by_pilot(bare, words) == (
        "cannot be told: no class has two rows that could be held out"
    )
    assert pilot_section.picture(pilot(bare)) is None


def test_many_sites_are_told_by_verdict_and_none_is_lost():
    many = pilot(*(site(f"s{i}", "beneficial", 3.0, 1.0) for i in range(30)))
    [line] = pilot_section.lines(many)
    assert (line.names, line.told.count(",")) == ("30 sites", 29)


def test_how_sure_it_is_names_few_rows_and_what_was_left_out():
    said = " ".join(pilot_section.how_sure(pilot(*THREE.sites, skipped=("rounds 3 to 5",))))
    assert "Fewer than 30 rows to judge by: <b>." in said
    assert "<b>: about 900 rows" in said
    assert "Left out, for want of time: rounds 3 to 5." in said
    assert "not calibrated" in said


def test_the_picture_shows_every_site_and_its_way():
    drawn = pilot_section.picture(THREE)
    assert drawn is not None
    for word in ("north", "south", "&lt;b&gt;", "points against training alone"):
        assert word in drawn.document
    assert len(pilot_section.table(THREE).rows) == 3


@pytest.mark.parametrize(("value", "text"), [(2.04, "+2.0"), (-0.5, f"{MINUS}0.5"), (-0.01, "0.0")])
def test_points_have_a_sign_unless_there_are_none(value, text):
    assert points(value) == text
