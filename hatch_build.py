"""Builds the page of the viewer into the package, where npm is there and it was not built before."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PATIENCE_S = 300
PAGE = Path("src", "asmil", "viewer", "static", "index.html")


class ViewerPage(BuildHookInterface[Any]):
    """Without npm, or if it fails, the package is built without the page: `asmil view` then says what to do."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page before the files are collected."""
        del version, build_data
        root = Path(self.root)
        npm = shutil.which("npm")
        if (root / PAGE).is_file() or not (root / "frontend").is_dir():
            return
        if npm is None:
            self.app.display_warning("npm is not installed: the package gets no viewer page")
            return
        for command in (["ci", "--no-audit", "--no-fund", "--fetch-retries=1"], ["run", "build"]):
            try:
                subprocess.run(
                    [npm, *command], cwd=root / "frontend", capture_output=True, check=True, timeout=PATIENCE_S
                )
            except (OSError, subprocess.SubprocessError) as error:
                self.app.display_warning(f"the package gets no viewer page: {error}")
                return
