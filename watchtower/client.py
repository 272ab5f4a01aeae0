"""Asks a tower over HTTP, as any bot could. The standard library is enough for that."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

TIMEOUT_S = 10.0
"""A tower answers in milliseconds; one that does not for this long is not well."""

MAX_BYTES = 64 * 1024 * 1024
"""Above the largest job view; a server that sends more is no tower."""


class ClientError(Exception):
    """The tower could not be asked, or refused; the message says why and what to do."""


class NotFoundError(ClientError):
    """The tower knows no such job or incident."""


class TowerClient:
    """Requests on one tower's API."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """`url` is what `watchtower serve` prints first, such as http://127.0.0.1:19660."""
        if not url.startswith(("http://", "https://")):
            raise ClientError(
                f"`{url}` is no address of a tower: it begins with http:// or https://"
            )
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s

    def jobs(self) -> list[dict[str, Any]]:
        """Live jobs."""
        return self._items("/api/v1/jobs")

    def job(self, job: str) -> dict[str, Any]:
        """One live job with its ranks."""
        return self._json(f"/api/v1/jobs/{_quoted(job)}")

    def verdict(self, job: str) -> dict[str, Any]:
        """A job's verdict."""
        return self._json(f"/api/v1/jobs/{_quoted(job)}/verdict")

    def verdict_text(self, job: str, shape: str = "text") -> str:
        """A job's verdict as text, markdown or slack."""
        return self._get(f"/api/v1/jobs/{_quoted(job)}/verdict?format={shape}")

    def incidents(self, job: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Incidents, newest first."""
        query = {"limit": str(limit)} | ({"job": job} if job else {})
        return self._items(f"/api/v1/incidents?{urllib.parse.urlencode(query)}")

    def incident(self, incident: str) -> dict[str, Any]:
        """One incident with its verdict and stacks."""
        return self._json(f"/api/v1/incidents/{_quoted(incident)}")

    def incident_text(self, incident: str, shape: str = "text") -> str:
        """One incident's verdict as text, markdown or slack."""
        return self._get(f"/api/v1/incidents/{_quoted(incident)}?format={shape}")

    def export(self, incident: str) -> str:
        """Everything one incident was concluded from, as a JSON document."""
        return self._get(f"/api/v1/incidents/{_quoted(incident)}/export")

    def mute(self, job: str, for_s: float, reason: str = "") -> dict[str, Any]:
        """Let a job page nobody for a while."""
        said = {"for_s": for_s, "reason": reason}
        return self._json(f"/api/v1/jobs/{_quoted(job)}/mute", "POST", said)

    def unmute(self, job: str) -> dict[str, Any]:
        """Let a job page again."""
        return self._json(f"/api/v1/jobs/{_quoted(job)}/mute", "DELETE")

    def ack(self, incident: str, by: str = "", note: str = "") -> dict[str, Any]:
        """Note who looks after an incident."""
        said = {"by": by, "note": note}
        return self._json(f"/api/v1/incidents/{_quoted(incident)}/ack", "POST", said)

    def _items(self, path: str) -> list[dict[str, Any]]:
        items = self._json(path).get("items")
        if not isinstance(items, list):
            raise ClientError(f"{self.url} does not answer like a watchtower tower")
        return items

    def _json(self, path: str, method: str = "GET", said: object = None) -> dict[str, Any]:
        try:
            answer = json.loads(self._ask(path, method, said))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ClientError(f"{self.url} does not answer like a watchtower tower")
        return answer

    def _get(self, path: str) -> str:
        return self._ask(path, "GET", None)

    def _ask(self, path: str, method: str, said: object) -> str:
        request = urllib.request.Request(self.url + path, method=method)
        if said is not None:
            request.data = json.dumps(said).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                return str(response.read(MAX_BYTES).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            detail = _detail(error)
            raise (NotFoundError if error.code == 404 else ClientError)(detail) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ClientError(
                f"no tower answers at {self.url} ({reason}); start one with `watchtower serve`, "
                "or name it with --tower or WATCHTOWER_URL"
            ) from None


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(65536))["detail"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"the tower answered {error.code} {error.reason}"


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
