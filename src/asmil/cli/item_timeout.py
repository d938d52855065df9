"""The option `--item-timeout` in words, for the verbs that have it."""

ITEM_TIMEOUT_HELP = (
    "Seconds for one feature file; one that takes longer is reported and left out. 0: no limit. "
    "Default: 600 for 32 files or more."
)
SLIDE_TIMEOUT_HELP = (
    "Seconds without progress on a slide before it is given up and the others go on. 0: no limit. Default: 1800."
)
