"""Build hook: the wheel holds one top-level package, and the app that Flower ships to the sites.

The packages of the checkout come to lie below ``coterie``, and import each other there. What Flower
ships comes along as it is, in ``coterie/flower-app``: ``fab-include`` in ``pyproject.toml`` names
it. An editable installation uses the checkout and needs none of this.
"""

import ast
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOP = "coterie"
APP = f"{TOP}/flower-app"
PRESETS = "deploy/papers/presets"  # read by coterie reproduce, and no business of a site
BELOW = ("common", "client_app", "server_app", "deploy")
BESIDE = ("**/*.c", "**/*.h", "**/templates/*.html", "**/templates/*.css", "**/templates/*.js")
"""What is shipped beside modules and is no Python; Flower's bundles refuse such files."""


class OnePackage(BuildHookInterface[Any]):
    """Places every shipped file, and those of the other packages with other imports."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name what goes into the wheel."""
        if version != "standard":
            return
        root = Path(self.root)
        self._changed = tempfile.TemporaryDirectory()
        placed = {root / TOP / "py.typed": f"{TOP}/py.typed"}
        for path in shipped(root):
            placed[root / path] = f"{APP}/{path.as_posix()}"
            changed = Path(self._changed.name, path)
            changed.parent.mkdir(parents=True, exist_ok=True)
            changed.write_bytes(below_top((root / path).read_bytes()))
            below = path if path.parts[0] == TOP else Path(TOP, path)
            placed[changed] = below.as_posix()
        for path in beside(root):
            placed[root / path] = f"{TOP}/{path.as_posix()}"
        for path in sorted((root / PRESETS).glob("*.toml")):
            placed[path] = f"{TOP}/{PRESETS}/{path.name}"
        placed[root / "pyproject.toml"] = f"{APP}/pyproject.toml"
        build_data["force_include"] |= {str(path): place for path, place in placed.items()}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files with other imports."""
        if version == "standard":
            self._changed.cleanup()


def shipped(root: Path) -> list[Path]:
    """Return the Python files that Flower ships, from the root."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["flwr"]["app"]["fab-include"]
    found = {path for pattern in patterns for path in root.glob(pattern.removeprefix("/"))}
    return sorted(path.relative_to(root) for path in found)


def beside(root: Path) -> list[Path]:
    """Return the files that modules read from their own folders, from the root."""
    paths = [path for top in BELOW for kind in BESIDE for path in (root / top).glob(kind)]
    return sorted(path.relative_to(root) for path in paths)


def below_top(source: bytes) -> bytes:
    """Return a module whose ``from common.x import y`` is ``from coterie.common.x import y``.

    Nothing else changes, neither comments nor texts nor the number of a line.
    """
    lines = source.splitlines(keepends=True)
    nodes = [node for node in ast.walk(ast.parse(source)) if _imports_ours(node)]
    # From the end, so that what stands before in a line stays where it is.
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        line, start = lines[node.lineno - 1], node.col_offset
        # the start of a node counts bytes, as we do
        lines[node.lineno - 1] = line[:start] + re.sub(
            rb"from\s+", rb"\g<0>" + f"{TOP}.".encode(), line[start:], count=1
        )
    return b"".join(lines)


def _imports_ours(node: ast.AST) -> bool:
    if isinstance(node, ast.Import) and any(_is_ours(alias.name) for alias in node.names):
        raise ValueError(f"line {node.lineno}: {ast.unparse(node)}: write from ... import ...")
    return isinstance(node, ast.ImportFrom) and not node.level and _is_ours(str(node.module))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in BELOW
