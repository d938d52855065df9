"""From slides to feature files: the whole way, slide by slide, wherever the work runs."""
