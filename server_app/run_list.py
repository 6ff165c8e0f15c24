"""Run list: the folders of the runs that a server plays, for whoever watches the server.

``coterie serve`` names the file; elsewhere there is none.
"""

import json
import os
from pathlib import Path

FILE_VARIABLE = "COTERIE_RUN_LIST"
"""Environment variable of the SuperLink, which its runs inherit: the file that folders are in."""


def note(folder: Path) -> None:
    """Add a run's folder to the list, if there is one."""
    path = os.environ.get(FILE_VARIABLE, "")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(str(folder)) + "\n")


def noted(path: Path) -> list[Path]:
    """Return the folders in a list, those named last at the end; none where there is no list."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(Path(json.loads(line)) for line in lines if line.strip()))
