import pytest

from common.messages import EvaluateReport
from server_app.record.ledger import Score


def test_score_weighs_sites_by_their_rows():
    reports = [
        EvaluateReport("a", 1, 1, 0, num_examples=10, loss=1.0, accuracy=0.5, seconds=0.0),
        EvaluateReport("b", 1, 1, 0, num_examples=30, loss=2.0, accuracy=0.9, seconds=0.0),
    ]
    score = Score.of(reports)
    assert score.accuracy == pytest.approx((5 + 27) / 40)
    assert score.loss == pytest.approx((10 + 60) / 40)
    assert (score.num_sites, score.num_examples) == (2, 40)
