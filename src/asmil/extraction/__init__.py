"""From slides to feature files, end to end, on any engine."""
