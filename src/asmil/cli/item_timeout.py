"""The help of the option `--item-timeout`, for the verbs that have it."""

ITEM_TIMEOUT_HELP = (
    "Leave out, and report, a feature file that takes longer than this many seconds. 0: no limit. "
    "Default: 600 for 32 files or more."
)
SLIDE_TIMEOUT_HELP = (
    "Give up on a slide after this many seconds without progress and continue with the others. 0: no limit. "
    "Default: 1800."
)
