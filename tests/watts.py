"""A power source with known watts, to hold the metering against."""

import math
import time

from common.power import MEASURED, Reading


class Watts:
    """Draws ``watts`` all the time, and remembers what it gave out."""

    def __init__(self, watts, *, gpu_watts=0.0, busy=math.nan, clock=time.perf_counter):
        self.watts, self.gpu_watts, self.busy = watts, gpu_watts, busy
        self.label, self.description = MEASURED, f"{watts} W"
        self.clock = clock
        self.began = self.since = clock()
        self.given = 0.0
        self.readings = 0
        self.closed = False

    def read(self):
        now = self.clock()
        seconds, self.since = now - self.since, now
        self.given += self.watts * seconds
        self.readings += 1
        return Reading(self.watts * seconds, self.gpu_watts * seconds, self.busy)

    def close(self):
        self.closed = True
