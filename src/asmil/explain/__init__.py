"""Maps of slides: how much each tile counted, drawn on the slide and written for QuPath, and how faithful a map is."""
