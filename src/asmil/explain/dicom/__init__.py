"""Heat maps and predictions as DICOM: parametric map, annotations and structured report; see docs/dicom.md.

The modules of this package import highdicom and pydicom, which only the extra `dicom` installs.
"""

from __future__ import annotations

import importlib.util

from asmil.errors import AsmilError


def require_dicom() -> None:
    """Raise if highdicom is not installed."""
    if importlib.util.find_spec("highdicom") is None:
        raise AsmilError("DICOM output needs highdicom, which is not installed; pip install 'asmil[dicom]'")
