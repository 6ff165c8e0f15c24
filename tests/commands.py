"""The command within this process: what one of its own gives, without the seconds of imports."""

import contextlib
import io
import subprocess
import sys

import pytest

from deploy import cli


def coterie(*words, cwd):
    """Return how ``coterie`` with these words ends in a folder, and what it prints."""
    given = ["coterie", *map(str, words)]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return subprocess.CompletedProcess(given, ended.value.code, out.getvalue(), err.getvalue())
