"""TLS as the plan wants it: one context for load and probes, and what is wrong with a handshake in one line.

Reads the PEM files; every mistake in them is a PlanError that names option and file.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sweep.endpoint import Endpoint
from sweep.errors import PlanError

_TIMEOUT_S = 5.0
_ALERT_S = 0.1  # beyond the time of a handshake, which took as many round trips
# verify_code of OpenSSL's x509_vfy.h
_EXPIRED, _NOT_YET, _WRONG_NAME = 10, 9, (62, 64)


class TlsOptions(Protocol):
    """What SweepPlan and StepOrder say of TLS: paths of PEM files, and whether to verify nothing."""

    @property
    def ca_file(self) -> str | None: ...
    @property
    def cert(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def insecure(self) -> bool: ...


def tls_context(kind: Callable[[int], ssl.SSLContext], options: TlsOptions) -> ssl.SSLContext:
    """A client's context of this kind (the ssl module's, or gevent's, whose sockets do not block). Raises PlanError."""
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    if options.ca_file is not None:
        _read_pem("--ca-file", options.ca_file, "CERTIFICATE")
        try:
            context.load_verify_locations(options.ca_file)
        except ssl.SSLError as error:
            raise _unreadable("--ca-file", options.ca_file, error) from error
    if options.cert is not None:
        _load_pair(context, options.cert, options.key)
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def shake_hands(endpoint: Endpoint, context: ssl.SSLContext, options: TlsOptions) -> None:
    """One handshake, and a look at what follows: with TLS 1.3 the server judges our certificate only after it.

    Raises PlanError with what does not fit and which option mends it; a connection that fails otherwise is not told
    here.
    """
    ask = f"HEAD / HTTP/1.1\r\nHost: {endpoint.authority}\r\nConnection: close\r\n\r\n".encode()
    began_s = time.monotonic()
    try:
        with (
            socket.create_connection((endpoint.host, endpoint.port), timeout=_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=endpoint.host) as sock,
        ):
            # First without a word: a server that refuses us closes at once, and what we send then hides its alert.
            sock.settimeout(_ALERT_S + time.monotonic() - began_s)
            try:
                sock.recv(1)
            except TimeoutError:
                sock.settimeout(_TIMEOUT_S)
                sock.sendall(ask)
                sock.recv(1)
    except ssl.SSLError as error:
        raise PlanError(f"target {endpoint.url}: {_trouble(error, endpoint, options)}") from error
    except OSError:
        return


def _load_pair(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    _read_pem("--cert", cert, "CERTIFICATE")
    option, file = ("--cert", cert) if key is None else ("--key", key)
    _read_pem(option, file, "PRIVATE KEY", "" if key is not None else "; give its key with --key")

    def no_passphrase() -> str:
        raise PlanError(f"{option} {file}: its key is encrypted; give one without a passphrase")

    try:
        context.load_cert_chain(cert, key, password=no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            told = f"--cert {cert}: its key is not the one in {file}; give the two that belong together"
            raise PlanError(told) from error
        raise _unreadable("--cert and --key", f"{cert}" if key is None else f"{cert}, {key}", error) from error


def _read_pem(option: str, file: str, holds: str, advice: str = "") -> None:
    """Raises PlanError unless the file can be read and has such a block."""
    try:
        text = Path(file).read_bytes()
    except OSError as error:
        raise PlanError(f"{option} {file}: {error.strerror}; give a PEM file that can be read") from error
    if f"{holds}-----".encode() not in text:
        raise PlanError(f"{option} {file} holds no {holds.lower()} in PEM form{advice or '; give one that does'}")


def _unreadable(option: str, file: str, error: ssl.SSLError) -> PlanError:
    return PlanError(f"{option} {file} cannot be read as PEM ({error.reason or error}); give an undamaged file")


def _trouble(error: ssl.SSLError, endpoint: Endpoint, options: TlsOptions) -> str:
    """What the handshake failed of, and what to give."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrust(error, endpoint, options)
    reason = error.reason or str(error)
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason or "HTTP_REQUEST" in reason:
        return "it does not speak TLS there; write the target with http://, or give the port that does"
    alert = "ALERT" in reason and any(word in reason for word in ("CERT", "UNKNOWN_CA", "HANDSHAKE_FAILURE"))
    if alert and options.cert is None:
        return f"it wants a client certificate ({reason}); give one with --cert and --key"
    if alert:
        return f"it refuses the client certificate of --cert ({reason}); give one that it trusts"
    if isinstance(error, ssl.SSLEOFError):
        return "it closes the connection in the TLS handshake; it may want a client certificate, or another, by --cert"
    return f"the TLS handshake fails ({reason}); look what TLS the target speaks"


def _distrust(error: ssl.SSLCertVerificationError, endpoint: Endpoint, options: TlsOptions) -> str:
    told = error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_NAME:
        return (
            f"its certificate is for another host name than {endpoint.host} ({told}); give --target the name in the "
            "certificate, or go without verification by --insecure"
        )
    if error.verify_code == _EXPIRED:
        return "its certificate has expired; renew it, or go without verification by --insecure"
    if error.verify_code == _NOT_YET:
        return "its certificate is not valid yet; look at both clocks, or go without verification by --insecure"
    if options.ca_file is None:
        return (
            f"its certificate is not trusted ({told}); give the certificate of who signed it with --ca-file, or go "
            "without verification by --insecure"
        )
    return (
        f"its certificate is not trusted, also not by --ca-file {options.ca_file} ({told}); give the certificate of "
        "who signed it, or go without verification by --insecure"
    )
