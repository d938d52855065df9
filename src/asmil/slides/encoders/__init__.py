"""Encoders that turn the pixels of a tile into features."""
