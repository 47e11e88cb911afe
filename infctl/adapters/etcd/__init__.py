"""Our own client of etcd's v3 API: only what the `Store` port asks for, plus a few calls for the doctor.

ADR 1 says why it exists. `EtcdStore` is the way in; `TlsFiles` names the certificate files of mutual TLS.
"""

import os

# gRPC's core writes each failed handshake to stderr by itself; our errors say it, once and in our words
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from infctl.adapters.etcd.client import EtcdStore
from infctl.ports.tls import TlsFiles

__all__ = ["EtcdStore", "TlsFiles"]
