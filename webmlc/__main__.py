"""`python -m webmlc` is the command `webmlc`."""

from webmlc.cli import main

main()
