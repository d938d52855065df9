"""Where a slide has tissue."""
