"""The claims of the paper and how each is decided; every rule was written before the runs that it reads."""
