"""Print pip constraints that pin every dependency of pyproject.toml to its declared lower bound.

`pandas>=2.1` becomes `pandas==2.1.*` and `pillow>=10` becomes `pillow==10.0.*`: patch releases are allowed, since some
projects never published the bare version. `tifffile>=2024.1.30` is a complete version: `tifffile==2024.1.30`.

    python .github/oldest_dependencies.py [pyproject.toml] > constraints.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

# tools of developers, and Triton: each PyTorch asks for one version of it, the oldest PyTorch for one before the bound
LEFT_OUT = ("dev", "docs", "fused")
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?\s*([^;]*)")
LOWER_BOUND = re.compile(r">=\s*(\d+(?:\.\d+)*)")


def constraint_of(requirement: str) -> str:
    """The constraint for one requirement; a requirement without a lower bound is an error."""
    parts = REQUIREMENT.match(requirement)
    bound = parts and LOWER_BOUND.search(parts[2])
    if not parts or not bound:
        raise SystemExit(f"{requirement!r} declares no lower bound (write name>=version)")
    numbers = bound[1].split(".")
    if len(numbers) > 2:
        return f"{parts[1]}=={bound[1]}"
    return f"{parts[1]}=={'.'.join([*numbers, '0'][:2])}.*"


def constraints(pyproject: Path) -> list[str]:
    """Sorted constraints for the dependencies of users: those of the package and of its extras."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = [names for extra, names in project["optional-dependencies"].items() if extra not in LEFT_OUT]
    return sorted({constraint_of(requirement) for names in (project["dependencies"], *extras) for requirement in names})


if __name__ == "__main__":
    print("\n".join(constraints(Path(sys.argv[1] if len(sys.argv) > 1 else "pyproject.toml"))))
