"""`python -m mbcal`."""

from mbcal.cli import main

main()
