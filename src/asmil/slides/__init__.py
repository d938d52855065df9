"""Whole-slide images: reading, tissue detection, tiling, encoders, and synthetic slides."""
