"""Ranks whose process ends during training. `patient` peers wait, as NCCL's do."""

from __future__ import annotations

from watchtower.drills.catalogue.stalls import event, happen
from watchtower.drills.drill import Drill
from watchtower.drills.setup import names

EXCEPTION = Drill(
    name="exception",
    shows="one rank raises and its process exits, its peers lose their connections",
    expected=names("exception", "ValueError", domain="user_code"),
    plan=event("truncated_record"),
    act=happen,
)

EXIT_ZERO = Drill(
    name="exit_zero",
    shows="one rank returns from main early while its peers still need it",
    expected=names("exited_early", domain="user_code"),
    plan=event("stop_early", patient=True),
    act=happen,
)

CONSEQUENTIAL = Drill(
    name="consequential",
    shows="one rank exits silently (exit code 3), its peers raise connection errors",
    expected=names("process_died", domain="user_code"),
    plan=event("die"),
    act=happen,
)
