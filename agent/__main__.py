"""`python -m agent`: the same as `watchtower-agent`."""

from agent.cli import main

if __name__ == "__main__":
    main()
