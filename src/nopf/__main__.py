"""`python -m nopf` is `nopf`."""

from nopf.command import main

main()
