"""Times as messages contain them (RFC 3339) and as people read them: in UTC, and how long ago."""

from __future__ import annotations

from datetime import datetime, timezone

MINUTE, HOUR, DAY = 60, 3600, 86_400


def format_time(stamp: str, now: float) -> str:
    """Return "2026-11-22 16:03:12 UTC (3 min ago)" for an RFC 3339 time.

    `now` is in UNIX seconds. Text that is not a time is returned as it is.
    """
    at = find_time(stamp)
    text = format_moment(stamp)
    return text if at is None else f"{text} ({format_distance(now - at)})"


def format_moment(stamp: str) -> str:
    """Return "2026-11-22 16:03:12 UTC" for an RFC 3339 time, for text that people read later.

    Text that is not a time is returned as it is.
    """
    at = _parse(stamp)
    return stamp if at is None else _format(at)


def format_wall(wall: float) -> str:
    """Return "2026-11-22 16:03:12 UTC" for UNIX seconds."""
    return _format(datetime.fromtimestamp(wall, timezone.utc))


def _format(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def read_time(stamp: str) -> datetime:
    """Return an RFC 3339 time, or a date, with its zone: UTC if it has none. Raises ValueError."""
    at = datetime.fromisoformat(stamp.replace("Z", "+00:00"))  # Python 3.10 does not know the Z
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)


def find_time(stamp: str) -> float | None:
    """Return the UNIX seconds of an RFC 3339 time; None if the text is not a time."""
    at = _parse(stamp)
    return None if at is None else at.timestamp()


def _parse(stamp: str) -> datetime | None:
    try:
        return read_time(stamp).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def format_distance(seconds: float) -> str:
    """Return "3 min ago" for a positive number of seconds, "in 2 h" for a negative one."""
    length = abs(round(seconds))
    if length < 2:
        return "now"
    if length < 2 * MINUTE:
        text = f"{length} s"
    elif length < 2 * HOUR:
        text = f"{length // MINUTE} min"
    elif length < 2 * DAY:
        text = f"{length // HOUR} h"
    else:
        text = f"{length // DAY} days"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def rfc3339(wall: float) -> str:
    """Return UNIX seconds as RFC 3339 in UTC with milliseconds."""
    stamp = datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")
