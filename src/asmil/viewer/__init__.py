"""The viewer: a local web server with the slides, maps and recorded attention of runs, and its page."""
