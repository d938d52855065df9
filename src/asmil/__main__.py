"""`python -m asmil`."""

from asmil.cli.main import main

main()
