"""`python -m sweep` is `ha-sweep`."""

from sweep.cli import main

main()
