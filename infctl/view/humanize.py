"""Numbers and times for people. Pure: the present is an argument."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40))


def seconds_since(text: str, now: datetime) -> float | None:
    """Seconds from an RFC 3339 time to `now`; None when the text is no time."""
    try:
        then = datetime.fromisoformat(text)
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return (now - then).total_seconds()


def duration(seconds: float) -> str:
    """At most two units: `45s`, `3m12s`, `5h03m`, `12d4h`."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def age(text: str | None, now: datetime) -> str:
    """The age of a time, `-` when it is not known."""
    found = seconds_since(text, now) if text else None
    return "-" if found is None else duration(found)


def size(count: int | None) -> str:
    if count is None:
        return "-"
    name, factor = next((u for u in reversed(_UNITS) if count >= u[1]), _UNITS[0])
    value = count / factor
    return f"{value:.0f}{name}" if value >= 10 or factor == 1 else f"{value:.1f}{name}"


def short(text: str | None, most: int) -> str:
    """Cut long text in the middle; names are never given to this."""
    if not text:
        return "-"
    clean = "".join(c if c.isprintable() else " " for c in text)
    if len(clean) <= most:
        return clean
    head = (most - 1) // 2
    return f"{clean[:head]}…{clean[-(most - 1 - head) :]}"


def clock(text: str, now: datetime) -> str:
    """A time in the zone of `now`: the time of day, the date too where it is another day; no time stays as it is."""
    try:
        then = datetime.fromisoformat(text)
    except ValueError:
        return text
    local = (then if then.tzinfo else then.replace(tzinfo=UTC)).astimezone(now.tzinfo)
    if local.date() == now.date():
        return f"{local:%H:%M:%S}.{local.microsecond // 1000:03d}"
    return f"{local:%Y-%m-%d %H:%M:%S}"


def reason_and_message(reason: str, message: str) -> str:
    """Both in one sentence; a message that begins with the reason is enough."""
    if not reason or message.startswith(reason):
        return message
    return f"{reason}: {message}" if message else reason
