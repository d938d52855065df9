"""Types of NumPy arrays, named once."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
AnyFloats: TypeAlias = NDArray[np.floating[Any]]
Floats32: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
