"""The page of the viewer, built into the package where npm is there, and the addresses of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

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


class ProjectAddresses(MetadataHookInterface):
    """`project.urls` of the repository whose workflow builds the package; a build elsewhere knows no address."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the addresses to the metadata of the project."""
        server, repository = (os.environ.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY"))
        if server and repository:
            home = f"{server}/{repository}"
            metadata["urls"] = {
                "Homepage": home,
                "Documentation": f"{home}/blob/main/docs/index.md",
                "Changelog": f"{home}/blob/main/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }
