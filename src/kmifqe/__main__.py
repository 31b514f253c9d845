"""`python -m kmifqe` is the command `kmifqe`."""

from kmifqe.cli import main

main()
