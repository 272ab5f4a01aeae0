"""`python -m watchtower`."""

from watchtower.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
