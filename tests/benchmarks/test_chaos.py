"""Whatever happens to a run, it ends with the model it would have had, or says what is wrong."""

import pytest

from benchmarks.chaos import FAULTS, GOOD, METHODS, SAME, Chaos, Schedule


@pytest.mark.slow
@pytest.mark.matrix
def test_twelve_schedules_of_kills_full_disks_and_broken_files(tmp_path):
    schedules = [Schedule.drawn(0, number) for number in range(12)]
    assert {schedule.method for schedule in schedules} == set(METHODS)
    assert {fault for schedule in schedules for fault, _ in schedule.faults} == set(FAULTS)
    chaos = Chaos(tmp_path)
    outcomes = [chaos.outcome(schedule) for schedule in schedules]
    assert [o for o in outcomes if o.partition(":")[0] not in GOOD] == []
    # Most of them are mended, and not only refused.
    assert outcomes.count(SAME) >= 7
