"""Detect the tissue of a slide."""
