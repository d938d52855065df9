"""Smooth random fields and seamless textures."""

from __future__ import annotations

import cv2
import numpy as np

from asmil.tables.arrays import Bytes, Floats32

INTERPOLATION_GAIN = 1.25
"""Compensates for the variance lost by interpolating between independent values."""


def smooth_field(rng: np.random.Generator, shape: tuple[int, int], scale: float) -> Floats32:
    """Rows x columns of noise of about unit variance that changes over `scale` pixels.

    Random values on a coarse lattice, interpolated; the lattice is rotated randomly, since outlines tend to
    follow it.
    """
    side = int(np.ceil(np.hypot(*shape) / scale)) + 4
    lattice = rng.standard_normal((side, side)).astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    cos, sin = np.cos(angle) / scale, np.sin(angle) / scale
    rows, columns = shape
    middle = np.array([[cos, -sin], [sin, cos]]) @ (columns / 2, rows / 2)
    shift = side / 2 - 0.5 + rng.uniform(-0.5, 0.5, 2) - middle
    to_lattice = np.array([[cos, -sin, shift[0]], [sin, cos, shift[1]]])
    flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
    field = cv2.warpAffine(lattice, to_lattice, (columns, rows), flags=flags, borderMode=cv2.BORDER_REFLECT)
    return np.asarray(field * INTERPOLATION_GAIN, dtype=np.float32)


def torus_texture(rng: np.random.Generator, side: int, sigma_x: float, sigma_y: float) -> Floats32:
    """side x side of Gaussian noise, smoothed by sigma pixels along each axis; opposite borders match.

    Mean 0, variance 1.
    """
    frequency = np.fft.fftfreq(side)
    half = np.fft.rfftfreq(side)
    spectrum = np.fft.rfft2(rng.standard_normal((side, side)).astype(np.float32))
    decay = np.exp(-2 * np.pi**2 * ((frequency[:, None] * sigma_y) ** 2 + (half[None] * sigma_x) ** 2))
    texture = np.fft.irfft2(spectrum * decay.astype(np.float32), (side, side))
    return np.asarray((texture - texture.mean()) / texture.std(), dtype=np.float32)


def to_bytes(values: Floats32, center: float, spread: float) -> Bytes:
    """center + spread * values, rounded and clipped to 0 ... 255."""
    return np.asarray(np.clip(np.rint(center + spread * values), 0, 255), dtype=np.uint8)


def coordinates(shape: tuple[int, int]) -> tuple[Floats32, Floats32]:
    """x (one row) and y (one column), to be broadcast to rows x columns."""
    rows, columns = shape
    return np.arange(columns, dtype=np.float32)[None], np.arange(rows, dtype=np.float32)[:, None]
