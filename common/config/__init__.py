"""The settings of a run: one schema for defaults, TOML files, words and Flower's run-config.

Keys are kebab-case everywhere a person types them. A setting has one meaning and one name; an
unknown key, a bad value or an impossible combination is a :class:`ConfigError` of one line per
problem, raised before anything starts. What concerns every run stands in this folder, by theme.
What one piece alone uses is declared beside that piece (:class:`common.plugins.PieceSettings`),
and names that belong to a table are checked by the table, so that adding touches one file.
"""

from common.config.reading import (
    from_run_config,
    given,
    is_setting,
    load,
    of_its_pieces,
    read_toml,
    recorded,
    recorded_values,
    split_word,
)
from common.config.settings import Settings
from common.config.site_training import Training
from common.schema import Scalar, Schema, allowed_values, kebab_case, unknown_name

__all__ = [
    "MAY_CHANGE",
    "Scalar",
    "Schema",
    "Settings",
    "Training",
    "allowed_values",
    "from_run_config",
    "given",
    "is_setting",
    "kebab_case",
    "load",
    "of_its_pieces",
    "read_toml",
    "recorded",
    "recorded_values",
    "split_word",
    "unknown_name",
]

MAY_CHANGE = frozenset(
    {
        *("resume", "workers", "data-dir", "output-dir", "round-timeout", "deadline-factor"),
        *("log-format", "report", "cluster"),
    }
)
"""Settings that a resumed run may be given anew: where things lie and how long to wait."""
