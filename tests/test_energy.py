"""A site's own meter."""

import time

import pytest
from watts import Watts

from client_app.energy import Meter, parted
from common import cpu_time
from common.config import Settings
from common.messages import Usage
from common.power import ATTRIBUTED, MEASURED

SETTINGS = Settings().replace(energy="codecarbon", device="cpu")


def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_site_with_a_machine_of_its_own_reports_what_it_drew():
    source = Watts(10.0)
    with Meter(SETTINGS, shared=False, source=source) as meter:
        began = time.perf_counter()
        busy(0.1)
        time.sleep(0.05)
        spent = time.perf_counter() - began
    assert meter.usage.energy == MEASURED
    # what was drawn before it began is not its own
    assert meter.usage.joules == pytest.approx(10.0 * spent, rel=0.1)
    assert 0.09 < meter.usage.cpu_seconds <= spent
    assert meter.usage.gpu_seconds == 0.0


def test_two_sites_on_one_machine_do_not_both_count_it():
    # each used half of the CPU time that the machine was busy
    usages = []
    for _ in range(2):
        source = Watts(10.0, busy=0.2, clock=iter([0.0, 0.0, 20.0]).__next__)
        with Meter(SETTINGS, shared=False, source=source) as meter:
            busy(0.1)
        usages.append(meter.usage)
    assert [usage.energy for usage in usages] == [ATTRIBUTED, ATTRIBUTED]
    # 10 W for 20 s are 200 J, not 400
    assert sum(usage.joules for usage in usages) == pytest.approx(200.0, rel=0.1)


def test_a_simulated_site_reports_time_alone_and_leaves_the_reading_to_the_server():
    own = cpu_time.own_seconds()
    with Meter(SETTINGS, shared=True, source=None) as meter:
        busy(0.1)
    assert meter.usage.energy == "shared"
    assert meter.usage.joules == 0.0
    assert meter.usage.cpu_seconds > 0.09
    # this process's own work is the rest
    assert cpu_time.own_seconds() - own < 0.05


def test_joules_of_a_gpu_count_where_the_site_used_it():
    source = Watts(10.0, gpu_watts=300.0, clock=iter([0.0, 0.0, 2.0]).__next__)
    meter = Meter(SETTINGS, shared=False, source=source)
    meter._on_gpu = True
    with meter:
        busy(0.05)
    assert meter.usage.gpu_seconds >= 0.05
    assert meter.usage.joules == pytest.approx(2.0 * 310.0)


def test_a_site_that_cannot_be_metered_says_so():
    with Meter(SETTINGS, shared=False, source=None) as meter:
        busy(0.01)
    assert meter.usage.energy == "no"
    with Meter(SETTINGS, shared=False, source=Watts(float("nan"))) as meter:
        busy(0.01)
    assert meter.usage == Usage(meter.usage.cpu_seconds, 0.0, "no")


def test_parts_of_a_usage_add_up():
    usage = Usage(3.0, 2.0, MEASURED, 8.0)
    assert parted(usage, 0.25) == Usage(0.75, 0.5, MEASURED, 2.0)
