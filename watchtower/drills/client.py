"""Asks the tower over HTTP, as anybody could."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request

TIMEOUT_S = 5.0

Json = dict[str, object]


class TowerClient:
    """GET requests on the tower's API. None means that there is no answer (yet)."""

    def __init__(self, url: str) -> None:
        self.url = url

    def verdict(self, job: str) -> Json | None:
        """What the tower thinks of the job now."""
        return self._get(f"/api/v1/jobs/{urllib.parse.quote(job, safe='')}/verdict")

    def job(self, job: str) -> Json | None:
        """Ranks, nodes and dumps of the job."""
        return self._get(f"/api/v1/jobs/{urllib.parse.quote(job, safe='')}")

    def incidents(self) -> list[Json] | None:
        """Every incident, newest first."""
        answer = self._get("/api/v1/incidents")
        items = answer.get("items") if answer else None
        return items if isinstance(items, list) else None

    def _get(self, path: str) -> Json | None:
        try:
            with urllib.request.urlopen(self.url + path, timeout=TIMEOUT_S) as response:
                answer = json.load(response)
        except (OSError, http.client.HTTPException, ValueError):
            # Not known yet (404), starting, or busy: asked again at the next look.
            return None
        return answer if isinstance(answer, dict) else None
