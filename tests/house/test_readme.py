"""The README's commands do what it says: every block tagged `test` runs, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

from shared_data import REPOSITORY

BLOCK = re.compile(r"^```(bash|python) test\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_tagged_block_runs(tmp_path: Path):
    blocks = BLOCK.findall((REPOSITORY / "README.md").read_text())
    assert {language for language, _ in blocks} == {"bash", "python"}
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
            timeout=200,
        )
        assert done.returncode == 0, f"{code}\n{done.stderr}"
    assert (tmp_path / "report" / "report.html").exists()
    assert len(list((tmp_path / "predictions_attention").glob("*.h5"))) == 24


def test_links_between_pages_lead_somewhere():
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_no_placeholder_is_left():
    for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        assert "{{" not in page.read_text(), page


def test_documented_settings_are_the_ones_there_are():
    from asmil.models import methods
    from asmil.training.config import AnchorConfig, DataConfig, TrainingConfig

    documented = set(re.findall(r"^\| `([a-z_]+)` \|", (REPOSITORY / "docs" / "settings.md").read_text(), re.MULTILINE))
    kinds = [TrainingConfig, AnchorConfig, DataConfig, *(m.model.config_type for m in methods().values())]
    for kind in kinds:
        assert kind.model_fields.keys() <= documented, f"{kind.__name__} has settings that docs/settings.md lacks"
