"""Certificates for tests: an authority, what it signs, and server contexts that show them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme

NAME = "127.0.0.1"


class Pems(NamedTuple):
    """Paths as options take them. both: certificate and key in one file."""

    ca: str
    other_ca: str
    cert: str
    key: str
    both: str
    stranger_cert: str
    stranger_key: str


class Authority:
    def __init__(self, folder: Path) -> None:
        self._ca, other = trustme.CA(), trustme.CA()
        leaf, stranger = self._ca.issue_cert("ops@example.org"), other.issue_cert("mallory@example.org")
        files = {
            "ca": self._ca.cert_pem.bytes(), "other_ca": other.cert_pem.bytes(),
            "cert": leaf.cert_chain_pems[0].bytes(), "key": leaf.private_key_pem.bytes(),
            "both": leaf.private_key_and_cert_chain_pem.bytes(),
            "stranger_cert": stranger.cert_chain_pems[0].bytes(), "stranger_key": stranger.private_key_pem.bytes(),
        }  # fmt: skip
        for name, content in files.items():
            (folder / f"{name}.pem").write_bytes(content)
        self.pems = Pems(**{name: str(folder / f"{name}.pem") for name in files})

    def server(self, name: str = NAME, *, days: int = 2, wants_client: bool = False) -> ssl.SSLContext:
        """days: until it expires; negative when it has."""
        now = datetime.now(UTC)
        issued = self._ca.issue_cert(name, not_before=now - timedelta(days=9), not_after=now + timedelta(days=days))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued.configure_cert(context)
        if wants_client:
            context.verify_mode = ssl.CERT_REQUIRED
            self._ca.configure_trust(context)
        return context
