"""Every fault drill several times, random ranks, default settings: is rank and cause right?

One row a drill. Exits 1 when an answer was wrong. Results are printed as they come.
"""

from __future__ import annotations

import argparse

from drilling import run_drill

from watchtower.drills.catalogue import DRILLS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--backend", default="stdlib", choices=["stdlib", "torch"])
    parser.add_argument("--drills", default="", help="comma-separated names; all faults when empty")
    args = parser.parse_args()
    names = args.drills.split(",") if args.drills else fault_names(args.backend)
    wrong = 0
    for name in names:
        results = [
            run_drill(name, ranks=args.ranks, backend=args.backend) for _ in range(args.runs)
        ]
        rank_right = sum(result["right_rank"] for result in results)
        cause_right = sum(result["right_cause"] for result in results)
        wrong += 2 * args.runs - rank_right - cause_right
        injected = [result["injected"]["ranks"] for result in results]
        print(
            f"{name:<20} rank {rank_right}/{args.runs}  cause {cause_right}/{args.runs}  "
            f"injected {injected}  "
            f"confidence {[result['verdict']['confidence'] for result in results]}",
            flush=True,
        )
    return 1 if wrong else 0


def fault_names(backend: str) -> list[str]:
    """Drills with a fault that exist on this backend, in the order of the catalogue."""
    return [drill.name for drill in DRILLS if drill.is_fault and backend in drill.backends]


if __name__ == "__main__":
    raise SystemExit(main())
