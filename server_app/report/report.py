"""A run's report: one HTML page that opens offline, and its pictures as SVG files.

It works on whatever a run's folder holds: a run that has just begun, one that was cut off, one that
failed. What is missing is said on the page. The same folder gives the same bytes.
"""

import math
from collections import Counter
from pathlib import Path

import numpy as np

from server_app import masked_data
from server_app.record.fairness import spread, worst_tenth
from server_app.record.recorded_run import FloatArray, Json, RecordedRun, number
from server_app.record.run_folder import RunFolder
from server_app.report import energy, objective, plots, precheck_page, releases
from server_app.report import words as say
from server_app.report.page import Picture, Table
from server_app.report.template import Absence, Fact, Page

_REFUSED_ROWS = 200
_LABELS = "label-histogram"


def write_report(folder: RunFolder) -> Path:
    """Write ``report.html`` and ``plots/*.svg`` of a run in any state; return the page's path."""
    run = RecordedRun.read(folder.path)
    with plots.style():
        drawn = [draw(run) for draw in _DRAWINGS]
    pictures = [entry for entry in drawn if isinstance(entry, Picture)]
    absences = [entry for entry in drawn if isinstance(entry, Absence)]
    for picture in pictures:
        folder.write(f"plots/{picture.name}.svg", picture.document)
    page = Page(
        name=run.name,
        state=run.state,
        lead=_lead(run),
        error=str(run.status.get("error") or ""),
        notes=run.notes,
        facts=_facts(run),
        pictures=pictures,
        absences=absences,
        tables=_tables(run),
    )
    folder.write("report.html", page.render())
    if run.precheck:
        precheck_page.write_page(folder, run)
    return folder.path / "report.html"


def _lead(run: RecordedRun) -> list[str]:
    get = {"model": "", "dataset": "", "split": "", "strategy": ""} | dict(run.settings)
    if not run.settings:
        return [f"The settings of this run are not known. {_ending(run)}"]
    split = f"split {get['split']}"
    if str(get["split"]).startswith("dirichlet"):
        split += f", dirichlet-alpha {get.get('dirichlet-alpha', 'not known')}"
    model = "a model" if get["model"] == "auto" else f"the model {get['model']}"
    what = (
        f"{say.plural(len(run.ordered_sites.names), 'site')} "
        f"{objective.doing(run.settings, model)} on "
        f"the data set {Path(str(get['dataset'])).name} ({split}); "
        f"the method {get['strategy']} decided who trained in each round."
    )
    told = [f"Disclosed: {run.clusters['disclosure']}."] if "disclosure" in run.clusters else []
    if run.precheck:
        told.append("What the costs between the sites advise: precheck.html beside this page.")
    return [what, f"{_grouped(run)} {_ending(run)}", *told]


def _grouped(run: RecordedRun) -> str:
    if not run.cluster_of:
        return f"{_no_clusters(run).capitalize()}."
    labels = run.grouping is not None and run.grouping.kind == _LABELS
    alike = "with similar shares of the classes" if labels else "that resemble each other"
    if run.clusters.get("score") == "diversity":
        alike = "that complement each other"
    count = len(set(run.cluster_of.values()))
    return f"It put sites {alike} into {say.plural(count, 'cluster')}."


def _no_clusters(run: RecordedRun) -> str:
    done = run.state == "finished"
    return "this method does not group sites" if done else "sites are not grouped (so far)"


def _ending(run: RecordedRun) -> str:
    done, planned = _rounds_done(run)
    if run.state == "finished":
        return f"The run finished after {say.plural(done, 'round')}."
    if run.state == "failed":
        return f"The run failed after {done} of {planned} rounds."
    if run.state == "running":
        seen = run.status.get("updated", "at an unknown time")
        return f"The run is not over: {done} of {planned} rounds, last sign of life {seen}."
    return "Nothing in the folder says how the run ended."


def _rounds_done(run: RecordedRun) -> tuple[int, object]:
    done = run.status.get("round", len(run.by_round))
    return done, run.status.get("rounds", run.settings.get("num-server-rounds", "?"))


def _facts(run: RecordedRun) -> list[Fact]:
    done, planned = _rounds_done(run)
    clusters = Counter(run.cluster_of.values())
    smallest, largest = min(clusters.values(), default=0), max(clusters.values(), default=0)
    spread = f"{smallest} to {say.plural(largest, 'site')}" if clusters else _no_clusters(run)
    trained = [len(line["trained"]) for line in run.rounds if "trained" in line]
    mean = number(run.results, "mean_clients_per_round")
    mean = float(np.mean(trained)) if math.isnan(mean) and trained else mean
    down = run.total("bytes_down", lambda line: number(line, "bytes_down"))
    up = run.total("bytes_up", lambda line: number(line, "bytes_up"))
    seconds, share = run.total("seconds", say.seconds), number(run.results, "uplink_share")
    missing = sum(reason == "no reply" for *_, reason in run.refused)
    rows = sum(filter(math.isfinite, (number(site, "num_examples") for site in run.sites)))
    return [
        *_accuracy_facts(run),
        Fact("Rounds", f"{done} of {planned}", "one round: train, average, evaluate"),
        Fact(
            "Sites",
            str(len(run.ordered_sites.names)),
            f"with {rows:,.0f} training rows" if rows else "",
        ),
        Fact("Clusters", str(len(clusters) or "none"), spread),
        Fact("Sites that trained per round", say.number_or_unknown(mean, "{:.3g}".format), "mean"),
        Fact("Sent to the sites", say.size(down), "models and questions"),
        Fact("Sent by the sites", say.size(up), "models and reports"),
        *energy.facts(run),
        Fact("Updates sent", say.percent(share), "of what everybody in every round would send"),
        Fact("Time", say.number_or_unknown(seconds, say.duration), "of all rounds"),
        Fact("Replies rejected", str(len(run.refused) - missing), "by the checks on updates"),
        Fact("Replies missing", str(missing), "not there in time"),
    ]


def _accuracy_facts(run: RecordedRun) -> list[Fact]:
    accuracy = run.column("accuracy")
    known = np.flatnonzero(np.isfinite(accuracy))
    final, best = number(run.results, "accuracy"), number(run.results, "best_accuracy")
    best_round = run.results.get("best_round", "?")
    if math.isnan(final) and len(known):
        final = float(accuracy[known[-1]])
    if math.isnan(best) and len(known):
        best, best_round = float(np.nanmax(accuracy)), run.numbers[np.nanargmax(accuracy)]
    scores = np.array(list(run.evaluated.values()))
    worst, deviation = (f(scores) if len(scores) else math.nan for f in (worst_tenth, spread))
    last = "Accuracy at the end" if run.state == "finished" else "Accuracy, last round"
    return [
        Fact(last, say.percent(final), masked_data.accuracy_means(run.settings)),
        Fact("Best accuracy", say.percent(best), f"in round {best_round}" if best >= 0 else ""),
        Fact("Worst tenth of the sites", say.percent(worst), "their mean accuracy, last round"),
        Fact(
            "Spread over the sites", say.percent(deviation), "standard deviation of their accuracy"
        ),
    ]


# --- pictures --------------------------------------------------------------------------------


def _draw_progress(run: RecordedRun) -> Picture | Absence:
    title = "Accuracy and loss, round by round"
    if not run.rounds:
        return Absence(title, "no round has ended")
    accuracy, loss = _per_model(run, "accuracy"), _per_model(run, "loss")
    figure = plots.progress(run.numbers, accuracy, loss, run.column("train_loss"))
    caption = (
        "Look for curves that level off: accuracy rising and loss falling means that the sites "
        "still learn from each other; every site counts by its held-out rows."
    )
    return Picture.of("progress", title, caption, figure)


def _per_model(run: RecordedRun, key: str) -> FloatArray:
    """(1 + m, T): over all sites, then each model if there are several."""
    known = {model["model"] for line in run.rounds for model in _models(line)}
    rows = np.full((max(known, default=0) + 1, len(run.numbers)), np.nan)
    for column, line in _columns(run):
        for model in _models(line):
            rows[model["model"], column] = number(model, key)
    return np.vstack([run.column(key), rows if len(known) > 1 else rows[:0]])


def _models(line: Json) -> list[Json]:
    return [model for model in line.get("models", ()) if "model" in model]


def _columns(run: RecordedRun) -> list[tuple[int, Json]]:
    first = int(run.numbers[0])
    return [(round_number - first, line) for round_number, line in run.by_round.items()]


def _draw_components(run: RecordedRun) -> Picture | Absence:
    title = "Clusters in two dimensions"
    if run.grouping is None:
        return Absence(title, _no_clusters(run))
    points, shares = plots.principal_components(run.grouping.descriptors)
    alike = run.grouping.kind.replace("-", " ")
    caption = (
        f"Look for clouds of one colour: near sites are alike in their {alike}; "
        "overlap can also come from what two principal components leave out."
    )
    figure = plots.components(points, shares, run.grouping.sites)
    return Picture.of("components", title, caption, figure)


def _draw_silhouettes(run: RecordedRun) -> Picture | Absence:
    title = "How many clusters"
    scores = {int(k): number(run.clusters["scores"], k) for k in run.clusters.get("scores") or ()}
    numbers = np.array(sorted(k for k, score in scores.items() if math.isfinite(score)))
    if not run.cluster_of or len(numbers) == 0:
        set_by_hand = "no number of clusters was scored against another"
        return Absence(title, set_by_hand if run.cluster_of else _no_clusters(run))
    chosen = run.clusters.get("num_clusters", len(set(run.cluster_of.values())))
    hint, unit = _SCORES.get(str(run.clusters.get("score")), _SCORES["silhouette"])
    caption = f"{hint}; this run used {say.plural(chosen, 'cluster')}."
    values = np.array([scores[k] for k in numbers.tolist()])
    return Picture.of(
        "silhouettes", title, caption, plots.silhouettes(numbers, values, chosen, unit)
    )


_SCORES = {
    "silhouette": (
        "Look for the peak: the silhouette is near 1 where sites are much closer to their own "
        "cluster than to the next",
        "mean silhouette (-1 to 1)",
    ),
    "diversity": (
        "Look for little difference: the score is high where every cluster resembles the whole "
        "federation; the clients per round set the number of clusters, not the score",
        "diversity inside less between (nats)",
    ),
}


def _draw_label_shares(run: RecordedRun) -> Picture | Absence:
    title = "What each site's rows are labelled"
    if run.grouping is None:
        return Absence(title, _no_clusters(run))
    if run.grouping.kind != _LABELS:
        return Absence(title, f"sites were compared by {run.grouping.kind}, not by their labels")
    caption = (
        "Look for rows that resemble each other between two lines: those sites hold the same "
        "classes, and that is why they share a cluster."
    )
    figure = plots.label_shares(run.grouping.descriptors, run.grouping.sites)
    return Picture.of("label-shares", title, caption, figure)


def _draw_dissimilarities(run: RecordedRun) -> Picture | Absence:
    title = "How different the sites are"
    if run.grouping is None:
        return Absence(title, _no_clusters(run))
    caption = (
        "Look for dark squares along the diagonal: the sites of a cluster are alike; bright "
        "areas elsewhere mean that the clusters differ."
    )
    metric = str(run.clusters.get("metric", run.grouping.kind))
    figure = plots.dissimilarities(run.grouping.distances, run.grouping.sites, metric)
    return Picture.of("dissimilarities", title, caption, figure)


def _draw_dendrogram(run: RecordedRun) -> Picture | Absence | None:
    merges = run.grouping.linkage if run.grouping else None
    if run.grouping is None or merges is None or len(merges) == 0:
        return None  # most groupings have none: nothing is missing
    title = "Which sites merge first"
    if len(merges) >= plots.TREE_SITES:
        return Absence(title, f"drawn for less than {plots.TREE_SITES} sites")
    caption = (
        "Look for long vertical lines: where they are cut, groups far from each other are kept "
        "apart; a branch of one colour is one cluster."
    )
    figure = plots.dendrogram(merges, run.grouping.sites)
    return Picture.of("dendrogram", title, caption, figure)


def _draw_participation(run: RecordedRun) -> Picture | Absence:
    title = "Who trained when"
    if not run.rounds or not run.ordered_sites.names:
        return Absence(title, "no round has ended")
    caption = (
        "Look for empty rows: those sites never trained; coloured cells are sites that trained "
        "in a round, and the bars count them."
    )
    figure = plots.participation(_doings(run), run.numbers, run.ordered_sites)
    return Picture.of("participation", title, caption, figure)


def _doings(run: RecordedRun) -> np.ndarray:
    """(n, T) what each site did in each round, by its last attempt."""
    place = {site: row for row, site in enumerate(run.ordered_sites.names)}
    doings = np.full((len(place), len(run.numbers)), plots.IDLE, dtype=np.int8)
    for column, line in _columns(run):
        rejected = (entry.get("site") for entry in line.get("rejected", ()))
        # A site that trained and then failed to evaluate did train: the later entry counts.
        groups = {
            plots.MISSING: line.get("missing", ()),
            plots.REJECTED: rejected,
            plots.TRAINED: line.get("trained", ()),
        }
        for doing, sites in groups.items():
            rows = [place[site] for site in sites if site in place]
            doings[rows, column] = doing
    return doings


def _draw_accuracy_spread(run: RecordedRun) -> Picture | Absence:
    title = "Accuracy of each site, last round"
    if not run.evaluated:
        return Absence(title, "no site's accuracy is recorded")
    caption = (
        "Look at the low end: a good mean can hide sites that the model does not serve; the "
        "dashed line is the mean of the worst tenth."
    )
    names = sorted(run.evaluated)
    accuracy = np.array([run.evaluated[name] for name in names])
    figure = plots.accuracy_spread(accuracy, names, run.clusters_of(names))
    return Picture.of("accuracy-spread", title, caption, figure)


def _draw_traffic(run: RecordedRun) -> Picture | Absence:
    title = "Bytes sent in each round"
    down, up = run.column("bytes_down"), run.column("bytes_up")
    if not np.isfinite([down, up]).any():
        return Absence(title, "no bytes are recorded")
    caption = (
        "Look for what a round costs the network: to the sites goes a model per site that trains "
        "or evaluates, back come the trained models; headers and TLS are not counted."
    )
    return Picture.of("traffic", title, caption, plots.traffic(run.numbers, down, up))


def _draw_energy(run: RecordedRun) -> Picture | Absence:
    drawn = energy.figure(run)
    if isinstance(drawn, Absence):
        return drawn
    return Picture.of(energy.NAME, energy.PICTURE, energy.CAPTION, drawn)


_DRAWINGS = (
    _draw_progress,
    _draw_components,
    _draw_silhouettes,
    _draw_label_shares,
    _draw_dissimilarities,
    _draw_dendrogram,
    _draw_participation,
    _draw_accuracy_spread,
    objective.draw,
    _draw_traffic,
    _draw_energy,
)


# --- tables ----------------------------------------------------------------------------------


def _tables(run: RecordedRun) -> list[Table]:
    return [
        _cluster_table(run),
        *objective.tables(run),
        *energy.tables(run),
        *releases.tables(run.privacy, run.central),
        _refused_table(run),
        _site_table(run),
        _round_table(run),
        _pair_table("Settings", run.settings, "config.toml"),
        _pair_table("Environment", _flat(run.environment), "environment.json"),
    ]


def _cluster_table(run: RecordedRun) -> Table:
    sites, title = run.ordered_sites, "Clusters and their members"
    if not run.cluster_of:
        return Table(title, note=f"{_no_clusters(run).capitalize()}.")
    rows, colors = [], []
    for begin, end in zip(sites.starts[:-1], sites.starts[1:], strict=True):
        cluster = int(sites.clusters[begin])
        name = str(cluster) if cluster >= 0 else "none"
        rows.append((name, str(end - begin), ", ".join(sites.names[begin:end])))
        colors.append(plots.cluster_color(cluster))
    chosen = {
        "silhouette": "the number with the best silhouette",
        "clients-per-round": "each large enough for a round",
        "num-clusters": "as was set",
        "flis-threshold": "as the threshold on equal predictions gives",
        "ot-detrimental": "as merge while their mean cost is below the detrimental threshold",
    }
    why = chosen.get(str(run.clusters.get("chosen_by")), "as the method found them")
    before = run.clusters.get("round", 0)
    when = f"after round {before}" if before else "before round 1"
    count = say.plural(len(set(run.cluster_of.values())), "cluster")
    head = ("cluster", "sites", "members")
    return Table(
        title, head, rows, frozenset({0, 2}), f"{count}, {why}; formed {when}.", tuple(colors)
    )


def _refused_table(run: RecordedRun) -> Table:
    title = "Replies that were rejected or missing"
    if not run.refused:
        return Table(title, note="None: every reply counted.")
    shown = run.refused[-_REFUSED_ROWS:]
    note = f"{len(run.refused)} replies did not count."
    if len(shown) < len(run.refused):
        note += f" The last {len(shown)} are shown; rounds.jsonl holds all of them."
    rows = [
        (str(attempt[0]), str(attempt[1]), site or "not known", phase or "not known", reason)
        for attempt, site, phase, reason in shown
    ]
    head = ("round", "attempt", "site", "phase", "reason")
    return Table(title, head, rows, frozenset({2, 3, 4}), note)


def _site_table(run: RecordedRun) -> Table:
    known = {site["site"]: site for site in run.sites}
    trained = Counter(site for line in run.by_round.values() for site in line.get("trained", ()))
    selected = run.results.get("selected", trained)
    rows = [
        (
            site,
            str(cluster) if cluster >= 0 else "none",
            *(_count(known.get(site, {}), key) for key in ("num_examples", "num_test_examples")),
            str(selected.get(site, 0)),
            say.percent(run.evaluated.get(site, math.nan)),
            ", ".join(known.get(site, {}).get("releases", ())) or "not known",
        )
        for site, cluster in zip(
            run.ordered_sites.names, run.ordered_sites.clusters.tolist(), strict=True
        )
    ]
    head = ("site", "cluster", "training rows", "held-out rows", "selected", "accuracy")
    note = "Releases: what a site is willing to give out beyond its own evaluation's figures."
    clusters = run.ordered_sites.clusters.tolist() if run.cluster_of else ()
    colors = tuple(map(plots.cluster_color, clusters))
    return Table("Sites", (*head, "releases"), rows, frozenset({0, 6}), note, colors)


def _count(values: Json, key: str) -> str:
    return say.number_or_unknown(number(values, key), "{:,.0f}".format)


def _round_table(run: RecordedRun) -> Table:
    if not run.rounds:
        return Table("Rounds", note="No round has ended.")
    rows = [_round_row(line) for line in run.rounds]
    head = ("round", "attempt", "accuracy", "loss", "training loss", "trained", "rejected")
    more = ("missing", "to the sites", "from the sites", "seconds")
    note = "Losses are in nats; accuracy and loss are over all sites' held-out rows."
    return Table("Rounds", head + more, rows, frozenset(), note)


def _round_row(line: Json) -> tuple[str, ...]:
    return (
        str(line["round"]),
        str(line.get("attempt", 1)),
        say.percent(number(line, "accuracy")),
        say.loss(number(line, "loss")),
        say.loss(number(line, "train_loss")),
        *(str(len(line.get(key, ()))) for key in ("trained", "rejected", "missing")),
        *(say.size(number(line, key)) for key in ("bytes_down", "bytes_up")),
        say.number_or_unknown(say.seconds(line), "{:.3g}".format),
    )


def _pair_table(title: str, pairs: Json, source: str) -> Table:
    rows = [(str(key), str(value)) for key, value in pairs.items()]
    note = "" if rows else f"Not known: {source} is missing."
    return Table(title, ("name", "value"), rows, frozenset({0, 1}), note)


def _flat(environment: Json) -> Json:
    return {key: value for key, value in environment.items() if key != "packages"} | dict(
        environment.get("packages", {})
    )
