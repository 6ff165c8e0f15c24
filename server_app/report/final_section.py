"""Final evaluation in a report: figures of held-out rows with intervals, decisions, calibration."""

import math
from collections.abc import Iterator, Mapping

from common.evaluation.final import CALIBRATION_BINS
from common.tasks.metrics import TASK_METRICS
from server_app.final_evaluation.format import EvaluatedRows, FigureInterval, FinalEvaluationFile
from server_app.record.recorded_run import RecordedRun
from server_app.report import site_plots
from server_app.report import words as say
from server_app.report.drawing import short
from server_app.report.page import Fact, PageTable, Picture

__all__ = ["draw_calibration", "facts", "tables"]

_ALL = "all sites"
_SPOKEN_SITES = 40


def facts(run: RecordedRun) -> list[Fact]:
    """Return the headline of the first screen; nothing where no final evaluation was asked for."""
    found = run.final_evaluation
    if found is None or found.headline not in found.overall.figures:
        return []
    name = found.headline
    figure = found.overall.figures[name]
    words = f"{_between(figure)}{_by_threshold(found)}{found.why}"
    return [Fact(f"Look first at: {name}", _number(figure.value), words)]


def tables(run: RecordedRun) -> list[PageTable]:
    """Return the tables of a run's final evaluation; none where it was not asked for."""
    found = run.final_evaluation
    if found is None:
        return []
    made = [_figure_table(found)]
    if found.overall.confusion is not None:
        made.append(_decision_table(found, _class_names(run, len(found.overall.confusion))))
    if found.overall.calibration is not None:
        made.append(_calibration_table(found))
        made.append(_temperatures(found))
        if len(found.sites) > 1:
            made.append(_calibration_of_sites(found))
    return made


def draw_calibration(run: RecordedRun) -> Picture | None:
    """Return the picture of what was said and what was so; None where nobody asked for it."""
    found = run.final_evaluation
    if found is None or not found.overall.calibration:
        return None
    places = {where: own for where, own in _places(found) if where == _ALL or len(found.sites) > 1}
    bins = {
        where: [(each.rows, each.said, each.found) for each in own.calibration or ()]
        for where, own in places.items()
    }
    classes = len(found.overall.confusion or ())
    names = _class_names(run, classes)
    said = names[1] if classes == 2 else "the class named"
    figure = site_plots.calibration(bins, short(said, 40))
    caption = (
        "Look for points off the dashed line: above it things happen more often than the model "
        "says, below it less often; small marks are of few rows, and tell little."
    )
    told = "; ".join(
        f"{each.said:.2f} said, {each.found:.2f} found ({say.plural(each.rows, 'row')})"
        for each in found.overall.calibration
    )
    sites = [
        f"{where} {_number(own.calibration_error)} ({say.plural(own.num_examples, 'row')})"
        for where, own in places.items()
        if own.calibration_error is not None
    ]
    values = f"All sites, of {said}: {told}. Mean distance of said and found: "
    values += f"{say.listed(sites, _SPOKEN_SITES)}."
    return Picture.of("calibration", "Calibration", caption, figure, values)


def _figure_table(found: FinalEvaluationFile) -> PageTable:
    names = tuple(found.overall.figures)
    rows = [
        (where, str(own.num_examples), *(_with_interval(own.figures.get(name)) for name in names))
        for where, own in _places(found)
    ]
    note = f"Look first at {found.headline}: {found.why}."
    if found.resamples:
        drawn = "groups of rows that belong together" if _has_groups(found) else "rows"
        note += (
            f" In brackets 95 % intervals: {found.resamples} resamples of each site's held-out "
            f"{drawn}. They say nothing of training again, nor of other sites."
        )
    note += " Those of all sites that rank rows are means over the sites by rows."
    title = "Held-out rows after the last round"
    return PageTable(title, ("", "rows", *names), rows, frozenset({0}), note)


def _decision_table(found: FinalEvaluationFile, classes: tuple[str, ...]) -> PageTable:
    title = "What rows were said to be"
    if len(classes) > 2:
        counts = found.overall.confusion or ()
        body = [(name, *map(str, row)) for name, row in zip(classes, counts, strict=True)]
        note = "Rows of each class (down) by the class said (across), over all sites."
        return PageTable(title, ("class", *classes), body, frozenset({0}), note)
    rows = [(where, *_decisions(own)) for where, own in _places(found) if own.confusion]
    head = (
        *("", "threshold", f"{classes[1]}, found", f"{classes[1]}, missed"),
        *(f"{classes[0]}, called {classes[1]}", f"{classes[0]}, left alone"),
        *("sensitivity", "specificity", "precision"),
    )
    chosen = {
        "none": "the more probable class was said",
        "site": "each site's own, chosen on its training rows",
        "common": "one for all sites of a model, chosen on their training rows",
    }
    why = chosen.get(found.decision_threshold, "not known")
    note = f"Threshold: probability from which on a row is said to be {classes[1]}; {why}."
    return PageTable(title, head, rows, frozenset({0}), note)


def _decisions(own: EvaluatedRows) -> Iterator[str]:
    (left, called), (missed, hit) = own.confusion or ((0, 0), (0, 0))
    yield "" if math.isnan(own.threshold) else f"{own.threshold:.3f}"
    yield from map(str, (hit, missed, called, left))
    for part, whole in ((hit, hit + missed), (left, left + called), (hit, hit + called)):
        yield say.percent(part / whole if whole else math.nan)


def _calibration_table(found: FinalEvaluationFile) -> PageTable:
    bins = found.overall.calibration or ()
    rows = [(f"{each.said:.3f}", f"{each.found:.3f}", str(each.rows)) for each in bins]
    error = found.overall.calibration_error
    note = (
        f"Rows of all sites in {CALIBRATION_BINS} bins of what the model said: of two classes the "
        "probability of the second, of more that of the class it named. Mean distance of what was "
        f"said from what was so: {_number(math.nan if error is None else error)}."
    )
    title = "Calibration"
    return PageTable(title, ("probability said", "share found", "rows"), rows, frozenset(), note)


def _temperatures(found: FinalEvaluationFile) -> PageTable:
    rows = [
        (
            where,
            _number(math.nan if own.calibration_error is None else own.calibration_error),
            _number(math.nan if own.temperature is None else own.temperature),
            _number(math.nan if own.recalibrated_error is None else own.recalibrated_error),
        )
        for where, own in found.sites.items()
    ]
    head = ("site", "calibration error", "temperature", "error after it")
    note = (
        "A temperature above 1 says that the model is surer at the site than it should be. After "
        "it: each half of the site's held-out rows by the temperature of the other half. coterie "
        "predict --calibrated uses it."
    )
    return PageTable("Recalibration", head, rows, frozenset({0}), note)


def _calibration_of_sites(found: FinalEvaluationFile) -> PageTable:
    rows = [
        (where, f"{each.said:.3f}", f"{each.found:.3f}", str(each.rows))
        for where, own in found.sites.items()
        for each in own.calibration or ()
    ]
    head = ("site", "probability said", "share found", "rows")
    return PageTable("Calibration at each site", head, rows, frozenset({0}))


def _places(found: FinalEvaluationFile) -> Iterator[tuple[str, EvaluatedRows]]:
    yield _ALL, found.overall
    yield from found.sites.items()


def _has_groups(found: FinalEvaluationFile) -> bool:
    return found.overall.units < found.overall.num_examples


def _class_names(run: RecordedRun, count: int) -> tuple[str, ...]:
    """Return the classes' names, or their numbers where only the sites know."""
    known: Mapping[int, str] = dict(enumerate(run.class_names))
    return tuple(known.get(number, f"class {number}") for number in range(count))


def _with_interval(figure: FigureInterval | None) -> str:
    if figure is None:
        return say.number_or_unknown(None, str)
    inside = f" ({figure.low:.3f} to {figure.high:.3f})" if math.isfinite(figure.low) else ""
    return f"{_number(figure.value)}{inside}"


def _between(figure: FigureInterval) -> str:
    known = math.isfinite(figure.low)
    return f"95 % interval {figure.low:.3f} to {figure.high:.3f}; " if known else ""


def _by_threshold(found: FinalEvaluationFile) -> str:
    """Return that the headline goes by a threshold: the last round's accuracy beside it does not.

    Empty where it does not, or is of no known metric.
    """
    name = found.headline
    goes = name in TASK_METRICS and TASK_METRICS.named(name).decides
    if found.decision_threshold == "none" or not goes:
        return ""
    return "by the chosen threshold, where the last round's goes by the more probable class; "


def _number(value: float) -> str:
    return say.number_or_unknown(value, "{:.3f}".format)
