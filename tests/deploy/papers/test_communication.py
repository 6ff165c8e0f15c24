"""Share of communication: what is sent by the radio model, what is trained by its steps."""

import pytest

from common.radio import transmission_joules
from deploy.papers.communication import STEPS, RoundCost, picture, table
from server_app.report import drawing


def test_a_round_is_ten_epochs_and_a_model_both_ways():
    assert STEPS == 10 * 8
    cost = RoundCost("lenet", 1000, training=3.0)
    both = transmission_joules(1000) + transmission_joules(1000, uplink=False)
    assert cost.sending == pytest.approx(both)
    assert cost.share == pytest.approx(100 * both / (both + 3.0))


def test_table_and_picture_hold_every_model_with_its_spread():
    found = [
        [RoundCost("lenet", 1000, training) for training in (1.0, 3.0)],
        [RoundCost("resnet50", 23_520_842, 9000.0)],
    ]
    text = table(found)
    assert "| lenet | 1,000 | 2 ± 1 |" in text
    assert "| resnet50 | 23,520,842 | 9e+03 ± 0 |" in text
    with drawing.style():
        figure = picture(found)
        document = drawing.svg(figure, "Share of communication")
    assert "100,000<" in document
    assert "$" not in document  # a formula that nothing sets
    [axes] = figure.axes
    assert [each.get_text() for each in axes.texts] == ["lenet", "resnet50"]
