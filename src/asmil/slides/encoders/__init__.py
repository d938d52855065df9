"""From the pixels of a tile to its features."""
