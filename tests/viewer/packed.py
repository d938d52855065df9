"""Reading the binary answers of the viewer, as the page does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def unpack(content: bytes) -> dict[str, Any]:
    """The header's values, and the arrays by name."""
    start = 4 + int.from_bytes(content[:4], "little")
    about = json.loads(content[4:start])
    at = start
    for entry in about.pop("arrays"):
        values = np.frombuffer(content, entry["type"], entry["length"], at)
        about[entry["name"]] = values
        at += -(-values.nbytes // 8) * 8
    return about
