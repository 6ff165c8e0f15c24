"""Data folder: where the files of known data sets lie, and how missing ones come there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import DataError


@dataclass(frozen=True)
class DataFolder:
    """The setting data-dir, and whether torchvision may fetch missing files into it."""

    path: Path | None
    download: bool

    def files(
        self, dataset: str, names: Sequence[str], fetch: str = "", **options: str
    ) -> list[Path]:
        """Return the paths of `names` (or of ``name.gz``), fetched first by torchvision's `fetch`.

        Nothing is written while every file is there, so the folder may be read-only. A file that
        stays missing is a DataError with the place that was searched.
        """
        if self.path is None:
            raise DataError(
                f"dataset={dataset} is read from files: set data-dir=<folder that holds {names[0]}>"
                " (docs/data.md shows the layouts)"
            )
        root = self.path.resolve()
        if self.download and fetch and not all(_present(root / name) for name in names):
            _fetch(dataset, fetch, root, options)
        return [_present(root / name) or _missing(dataset, root / name, fetch) for name in names]


def _present(path: Path) -> Path | None:
    candidates = (path, path.with_name(path.name + ".gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _missing(dataset: str, path: Path, fetch: str) -> Path:
    remedy = (
        "put it there, or set download=true and a data-dir=<folder> that can be written"
        if fetch
        else "it is not fetched by itself: docs/data.md says where it comes from"
    )
    raise DataError(f"dataset={dataset}: there is no file {path}; {remedy}")


def _fetch(dataset: str, class_name: str, root: Path, options: dict[str, str]) -> None:
    from torchvision import datasets

    try:
        getattr(datasets, class_name)(str(root), download=True, **options)
    except (OSError, RuntimeError) as error:  # URLError is an OSError; RuntimeError: wrong md5
        raise DataError(
            f"dataset={dataset} could not be fetched into {root}: {error}; "
            "check the network and the folder, or put the files there by hand (docs/data.md)"
        ) from error
