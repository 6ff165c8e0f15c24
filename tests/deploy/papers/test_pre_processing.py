"""Energy before training: who pays what, and that the table and picture hold all of it."""

import pytest

from common.power import CodeCarbonSource
from common.radio import transmission_joules
from deploy.papers import pre_processing
from deploy.papers.pre_processing import METHODS, Cost, cost, groups_of, picture, sending, tables


def test_every_client_sends_its_histogram_once():
    assert sending(20) == pytest.approx(20 * transmission_joules(10))
    assert groups_of(200) == {"G = rho": 10, "G = L / rho": 20}


def test_the_table_and_the_picture_hold_every_grouping():
    sizes = (20, 100)
    found = {
        (method, name, clients): Cost(method, clients, groups, groups / 100, clients / 7)
        for clients in sizes
        for method in METHODS
        for name, groups in groups_of(clients).items()
    }
    text = tables(found, sizes)
    assert text.splitlines()[0].count("G = ") == 4
    assert "| 20 | " in text
    assert "14.3 J, 0.1 s" in text
    [axes] = picture(found, sizes).axes
    assert len(axes.get_lines()) == 5


@pytest.mark.slow
def test_more_clients_cost_the_server_more(monkeypatch):
    monkeypatch.setattr(pre_processing, "_LEAST_SECONDS", 0.2)
    source = CodeCarbonSource()
    try:
        few, many = (cost("RepClust", clients, 10, 0, source) for clients in (20, 200))
    finally:
        source.close()
    assert 0 < few.joules < many.joules
    assert 0 < few.seconds < many.seconds
