"""``python -m heterophony``."""

from .cli import main

main()
