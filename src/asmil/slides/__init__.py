"""Whole-slide images: reading, tissue, tiles, encoders, and slides that are made up."""
