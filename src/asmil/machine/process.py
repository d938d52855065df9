"""Whether the process belongs to asmil: the command and its workers do, a program that imports asmil does not.

Only in a process of its own asmil changes what others in the process use as well: the threads of torch.
"""

from __future__ import annotations

from asmil.machine.cores import respect_quota

_owned = False


def own_process() -> None:
    """Declare that this process runs only asmil; called by the command and by worker processes when they start."""
    global _owned
    _owned = True
    respect_quota()


def owns_process() -> bool:
    """Whether this process runs only asmil."""
    return _owned
