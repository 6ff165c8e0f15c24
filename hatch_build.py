"""Build hook: the wheel holds one top-level package, and the app that Flower ships to the sites.

The packages of the checkout come to lie below ``coterie``, and import each other there. What Flower
ships, two small files and ``pyproject.toml``, comes along as it is, in ``coterie/flower-app``. An
editable installation uses the checkout and needs none of this.
"""

import ast
import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOP = "coterie"
APP = f"{TOP}/flower-app"
SHIPPED = ("flower_app/client.py", "flower_app/server.py", "pyproject.toml")
BELOW = ("common", "client_app", "server_app", "deploy")


class OnePackage(BuildHookInterface[Any]):
    """Places every shipped file, and those of the other packages with other imports."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name what goes into the wheel."""
        if version != "standard":
            return
        root = Path(self.root)
        self._changed = tempfile.TemporaryDirectory()
        placed = {root / TOP / "py.typed": f"{TOP}/py.typed"}
        for path in packaged(root):
            below = path if path.parts[0] == TOP else Path(TOP, path)
            source = root / path
            if path.suffix == ".py":
                source = Path(self._changed.name, path)
                source.parent.mkdir(parents=True, exist_ok=True)
                source.write_bytes(below_top((root / path).read_bytes()))
            placed[source] = below.as_posix()
        for file in SHIPPED:
            placed[root / file] = f"{APP}/{file}"
        build_data["force_include"] |= {str(path): place for path, place in placed.items()}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files with other imports."""
        if version == "standard":
            self._changed.cleanup()


def packaged(root: Path) -> list[Path]:
    """Return the files of all packages, modules and what they read, from the root."""
    return sorted(
        path.relative_to(root)
        for package in (TOP, *BELOW)
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


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
