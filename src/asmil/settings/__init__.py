"""Settings: their base, the files that hold them, and the record of what an output was made from."""
