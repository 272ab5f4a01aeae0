"""How often watchtower is right about real hung jobs: run the drills, keep results, report."""
