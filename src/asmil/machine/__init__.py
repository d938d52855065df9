"""The machine and the process that asmil runs in: arithmetic, memory, locks, and how modules are loaded."""
