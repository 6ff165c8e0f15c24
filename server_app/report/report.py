"""Report: one HTML page on a run that opens offline, and its pictures as SVG files.

It works on whatever a run's folder holds: a run that has just begun, one that was cut off, one that
failed. What is missing is said on the page. The same folder gives the same bytes.
"""

from pathlib import Path

from server_app.record.recorded_run import RecordedRun
from server_app.record.run_folder import RunFolder
from server_app.report import drawing, precheck_page
from server_app.report.first_screen import facts, lead
from server_app.report.model_card import write_model_card
from server_app.report.page import Picture
from server_app.report.pictures import DRAWINGS
from server_app.report.tables import tables_of_run
from server_app.report.template import Absence, Page


def write_report(folder: RunFolder) -> Path:
    """Write ``report.html`` and ``plots/*.svg`` of a run in any state; return the page's path.

    Beside final models it writes their card.
    """
    run = RecordedRun.read(folder.path)
    with drawing.style():
        drawn = [draw(run) for draw in DRAWINGS]
    pictures = [entry for entry in drawn if isinstance(entry, Picture)]
    absences = [entry for entry in drawn if isinstance(entry, Absence)]
    for picture in pictures:
        folder.write(f"plots/{picture.name}.svg", picture.document)
    page = Page(
        name=run.name,
        state=run.state,
        lead=lead(run),
        error=run.status.error,
        notes=run.notes,
        facts=facts(run),
        pictures=pictures,
        absences=absences,
        tables=tables_of_run(run),
    )
    folder.write("report.html", page.render())
    write_model_card(folder, run)
    if run.precheck is not None:
        precheck_page.write_page(folder, run, run.precheck)
    return folder.path / "report.html"
