"""Our own client of etcd's v3 API: only what the `Store` port asks for, plus a few calls for the doctor.

ADR 1 says why it exists. `EtcdStore` is the way in; `TlsFiles` names the certificate files of mutual TLS.
"""

from infctl.adapters.etcd.channel import TlsFiles
from infctl.adapters.etcd.client import EtcdStore

__all__ = ["EtcdStore", "TlsFiles"]
