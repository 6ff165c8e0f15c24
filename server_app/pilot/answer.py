"""Answer of a pilot: from what the sites measured to verdicts and recommendations.

Two traps: the largest of several noisy figures is too large, so every change is shrunk over the
sites (:mod:`common.pilot.shrinkage`), and a site is recommended another candidate than the one that
is best for the federation only where its own interval excludes that one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.pilot.messages import FEDAVG, LOCAL, PilotLook
from common.pilot.outcomes import Change, Outcomes
from common.pilot.shrinkage import Z, interval, over_sites, shrunk
from server_app.pilot.candidates import Candidates
from server_app.record.pilot_format import PilotCandidate, PilotChange, PilotSite
from server_app.transport.verdicts import Verdict

__all__ = ["PilotAnswer", "judge"]

_SMALL = 0.5
"""Points, the least change that rows are asked for to tell."""


def judge(change: Change) -> Verdict:
    """Return what a change's 90 % interval says.

    >>> [str(judge(Change(y, 1.0))) for y in (2.0, 1.0, -2.0)]
    ['beneficial', 'uncertain', 'detrimental']
    """
    low, high = interval(change)
    if low > 0:
        return Verdict.BENEFICIAL
    return Verdict.DETRIMENTAL if high < 0 else Verdict.UNCERTAIN


@dataclass(frozen=True)
class PilotAnswer:
    """What a look at the sites says.

    Attributes:
        names: of the sites.
        candidates: that were played.
        looks: what each site measured, by its place; who did not answer is missing.
    """

    names: Sequence[str]
    candidates: Candidates
    looks: Mapping[int, PilotLook]

    def over_all(self) -> tuple[PilotCandidate, ...]:
        """Return what each candidate but training alone changes on average over the sites."""
        return tuple(
            PilotCandidate(name, self.candidates.words(name), change.change, *interval(change))
            for name, change in self._means().items()
        )

    @property
    def best(self) -> str:
        """The candidate of the largest lower bound over all sites, the one that shares least."""
        lows = {LOCAL: 0.0} | {name: interval(mean)[0] for name, mean in self._means().items()}
        return max(self.candidates.names, key=lambda name: lows.get(name, -math.inf))

    def sites(self) -> tuple[PilotSite, ...]:
        """Return what every site is told."""
        best = self.best
        against_local = self._shrunk_changes(LOCAL)
        against_best = against_local if best == LOCAL else self._shrunk_changes(best)
        return tuple(
            self._site(client, best, against_local, against_best)
            for client in range(len(self.names))
        )

    def _site(
        self,
        client: int,
        best: str,
        against_local: Mapping[str, Mapping[int, Change]],
        against_best: Mapping[str, Mapping[int, Change]],
    ) -> PilotSite:
        name, seen = self.names[client], self.looks.get(client)
        if seen is None or not seen.held_out:
            why = "no class has two rows that could be held out" if seen else "it did not answer"
            return PilotSite(
                site=name,
                verdict=str(Verdict.UNCERTAIN if seen is None else Verdict.NOTHING),
                about=FEDAVG,
                recommended=LOCAL,
                metric="accuracy" if seen is None else seen.metric,
                held_out=0,
                units=0,
                needs=why,
            )
        usual = best if best in seen.candidates else LOCAL
        recommended = usual if best != usual else _deviation(client, best, against_best)
        about = FEDAVG if recommended == LOCAL else recommended
        told = against_local[about][client]
        outcomes = _outcomes(seen)
        return PilotSite(
            site=name,
            verdict=str(judge(told)),
            about=about,
            recommended=recommended,
            metric=seen.metric,
            held_out=seen.held_out,
            units=seen.units,
            alone=float(outcomes.values[seen.candidates.index(LOCAL)]),
            needs=_needs(told, seen.units),
            changes=tuple(
                self._change(name, against_local[name][client], seen)
                for name in seen.candidates
                if name != LOCAL
            ),
        )

    def _change(self, name: str, told: Change, seen: PilotLook) -> PilotChange:
        own = seen.candidates.index(name), seen.candidates.index(LOCAL)
        value, alone = (seen.values[place] for place in own)
        return PilotChange(
            name, value, told.change, *interval(told), measured=100 * (value - alone)
        )

    def _changes(self, name: str, other: str) -> dict[int, Change]:
        """Return what each site that has two candidates measured of their difference."""
        return {
            client: _outcomes(seen).difference(
                seen.candidates.index(name), seen.candidates.index(other)
            )
            for client, seen in self.looks.items()
            if seen.held_out and {name, other} <= set(seen.candidates)
        }

    def _shrunk_changes(self, other: str) -> dict[str, dict[int, Change]]:
        """Return the changes against a candidate, shrunk over the sites that one metric judges."""
        found: dict[str, dict[int, Change]] = {}
        for name in self.candidates.names:
            own = self._changes(name, other) if name != other else {}
            found[name] = {}
            for metric in {self.looks[client].metric for client in own}:
                mine = {c: own[c] for c in own if self.looks[c].metric == metric}
                of = over_sites(list(mine.values()))
                found[name] |= {client: shrunk(change, of) for client, change in mine.items()}
        return found

    def _means(self) -> dict[str, Change]:
        """Return each candidate's mean change over the sites that measured something.

        A site that a grouping leaves alone has no change by it.
        """
        asked = sum(1 for seen in self.looks.values() if seen.held_out)
        means = {}
        for name in self.candidates.names[1:]:
            own = list(self._changes(name, LOCAL).values())
            if own:
                # Of these very sites: what they would do with other rows is all that is unsure.
                error = np.sqrt(sum(each.error**2 for each in own))
                total = sum(each.change for each in own)
                means[name] = Change(total / asked, float(error) / asked)
        return means


def _outcomes(seen: PilotLook) -> Outcomes:
    number = len(seen.candidates)
    covariance = np.array(seen.covariance).reshape(number, number)
    return Outcomes(np.array(seen.values), covariance, seen.floor)


def _deviation(client: int, best: str, against_best: Mapping[str, Mapping[int, Change]]) -> str:
    """Return what a site is recommended: the best for all, unless its own interval excludes it."""
    lows = {
        name: interval(changes[client])[0]
        for name, changes in against_best.items()
        if client in changes
    }
    better = {name: low for name, low in lows.items() if low > 0}
    return max(better, key=better.__getitem__) if better else best


def _needs(told: Change, units: int) -> str:
    """Return what it would take to tell whether a change is a gain or a loss."""
    if judge(told) is not Verdict.UNCERTAIN:
        return ""
    # Errors fall with the root of the rows; a smaller change is none to speak of.
    factor = (Z * told.error / max(abs(told.change), _SMALL)) ** 2
    needed = math.ceil(units * max(factor, 1) * 1.05)
    return f"about {needed:,} rows (or groups of rows) to judge by, of {units:,} now"
