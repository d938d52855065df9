"""The commands of the tutorials run as they are written, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shared_data import REPOSITORY

BLOCK = re.compile(r"^```(bash|python) test\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIALS = sorted(page.name for page in (REPOSITORY / "docs").glob("tutorial_*.md"))


@pytest.mark.heavy
@pytest.mark.parametrize("page", TUTORIALS)
def test_the_commands_of_a_tutorial_run(page, tmp_path):
    blocks = BLOCK.findall((REPOSITORY / "docs" / page).read_text(encoding="utf-8"))
    assert blocks
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for language, code in blocks:
        command = ["bash", "-euo", "pipefail", "-c", code] if language == "bash" else [sys.executable, "-c", code]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stderr[-3000:]}"
