"""Methods written as papers and official code write them, with our weights: what ours are measured against."""
