"""Which environment variables a group may not set: ours, those that would break supervision, and secrets.

A specification is kept in the store in plain text and shown to everyone who may look, so a name that promises a
secret is refused whatever its value is.
"""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_DYING = "the daemon sets it: at its default a dying engine holds its sockets open for up to 100 s"
_GPUS = "use spec.hosts[].gpus"
_SYSTEMD = "systemd would take the engine for the daemon"
_CUT = "a planned stop would cut the streams that the engine still runs"

OURS = {
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": _DYING,
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": _DYING,
    "PYTHONUNBUFFERED": "the daemon sets it, so that the last words of an engine reach its log",
    "CUDA_VISIBLE_DEVICES": _GPUS,
    "NVIDIA_VISIBLE_DEVICES": _GPUS,
    "CUDA_DEVICE_ORDER": _GPUS,
}
BREAKS = {
    "PROMETHEUS_MULTIPROC_DIR": "two engines that share it merge their metrics",
    "NOTIFY_SOCKET": _SYSTEMD,
    "WATCHDOG_PID": _SYSTEMD,
    "WATCHDOG_USEC": _SYSTEMD,
    "LISTEN_FDS": _SYSTEMD,
    "LISTEN_PID": _SYSTEMD,
    "SGLANG_GRPC_PORT": "the HTTP API is what gateways speak, and this opens another way in",
    "SGLANG_RUST_SERVER": "the engine's processes would be others than those the daemon watches",
    "SGL_FORCE_SHUTDOWN": _CUT,
    "SGLANG_FORCE_SHUTDOWN": _CUT,
    "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": "a header could replace the request id that aborts and replays go by",
}
_SECRET = frozenset({"SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY"})
_SECRET_ENDS = ("TOKEN", "API_KEY", "ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY", "AUTH_KEY")


def refusal(name: str) -> str:
    """Why a group must not set this variable, as one sentence; "" when it may."""
    if not NAME.fullmatch(name):
        return "not a name of an environment variable"
    if name in OURS:
        return OURS[name]
    if name.startswith("INFCTL_"):
        return "names that begin so are infctl's own"
    if name in BREAKS:
        return f"breaks recovery: {BREAKS[name]}"
    if is_secret(name):
        return "looks like a secret, and a specification is kept and shown in plain text; put it into a file"
    return ""


def is_secret(name: str) -> bool:
    """By its words: HF_TOKEN is one, TOKENIZERS_PARALLELISM is none."""
    upper = name.upper()
    ends = any(upper == end or upper.endswith(f"_{end}") for end in _SECRET_ENDS)
    return ends or not _SECRET.isdisjoint(upper.split("_"))
