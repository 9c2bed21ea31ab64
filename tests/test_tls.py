"""TLS of one's own: files that are none, and a handshake that fails says of what, and which option mends it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from types import SimpleNamespace

import pytest
from pem import Authority

from sweep.endpoint import parse_endpoint
from sweep.errors import PlanError
from sweep.tls import shake_hands, tls_context


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pem"))


def options(**given):
    return SimpleNamespace(**({"ca_file": None, "cert": None, "key": None, "insecure": False} | given))


@contextlib.contextmanager
def server(context: ssl.SSLContext | None):
    """One handshake and one answer; without a context it speaks plain HTTP."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            client.settimeout(10)
            with client if context is None else context.wrap_socket(client, server_side=True) as connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join(15)
        listener.close()


def trouble(context: ssl.SSLContext | None, **given) -> str | None:
    """What `shake_hands` says of a server with this context; None: it is content."""
    asked = options(**given)
    with server(context) as url:
        try:
            shake_hands(parse_endpoint(url), tls_context(ssl.SSLContext, asked), asked)
        except PlanError as error:
            assert "\n" not in str(error) and str(error).startswith(f"target {url}: ")
            return str(error).partition(": ")[2]
    return None


def test_a_trusted_server(authority):
    """--ca-file, also with a client certificate, in two files or in one; or no verification at all."""
    pems = authority.pems
    assert None is trouble(authority.server(), ca_file=pems.ca)
    assert None is trouble(authority.server("other.example"), insecure=True)
    wanting = authority.server(wants_client=True)
    assert None is trouble(wanting, ca_file=pems.ca, cert=pems.cert, key=pems.key)
    assert None is trouble(wanting, ca_file=pems.ca, cert=pems.both)


def test_what_a_handshake_fails_of(authority):
    """Each reason apart, with the option that mends it."""
    pems = authority.pems
    expired, elsewhere = authority.server(days=-1), authority.server("other.example")
    wanting = authority.server(wants_client=True)
    stranger = {"cert": pems.stranger_cert, "key": pems.stranger_key}
    told = {
        "unknown": trouble(authority.server()),
        "wrong": trouble(authority.server(), ca_file=pems.other_ca),
        "expired": trouble(expired, ca_file=pems.ca),
        "name": trouble(elsewhere, ca_file=pems.ca),
        "wanted": trouble(wanting, ca_file=pems.ca),
        "stranger": trouble(wanting, ca_file=pems.ca, **stranger),
        "plain": trouble(None, ca_file=pems.ca),
    }

    words = {
        "unknown": ("its certificate is not trusted (", "with --ca-file, or go without verification by --insecure"),
        "wrong": (f"not trusted, also not by --ca-file {pems.other_ca}", "--insecure"),
        "expired": ("its certificate has expired", "--insecure"),
        "name": ("for another host name than 127.0.0.1", "--target", "--insecure"),
        "wanted": ("it wants a client certificate", "--cert and --key"),
        "stranger": ("it refuses the client certificate of --cert",),
        "plain": ("it does not speak TLS there", "http://"),
    }
    missing = {name: [word for word in words[name] if word not in (told[name] or "")] for name in words}
    assert {} == {name: (each, told[name]) for name, each in missing.items() if each}


def test_tls_1_2_tells_the_same(authority):
    """There a missing client certificate ends the handshake itself."""
    context = authority.server(wants_client=True)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    assert "it wants a client certificate" in trouble(context, ca_file=authority.pems.ca)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ca_file": "no-such.pem"}, "--ca-file no-such.pem: No such file or directory"),
        ({"ca_file": "."}, "--ca-file .: Is a directory"),
        ({"ca_file": "KEY"}, "key.pem holds no certificate in PEM form"),
        ({"ca_file": "BROKEN"}, "broken.pem cannot be read as PEM"),
        ({"cert": "CERT"}, "cert.pem holds no private key in PEM form; give its key with --key"),
        ({"cert": "KEY", "key": "KEY"}, "key.pem holds no certificate in PEM form"),
        ({"cert": "CERT", "key": "CERT"}, "cert.pem holds no private key in PEM form; give one that does"),
        ({"cert": "CERT", "key": "STRANGER_KEY"}, "its key is not the one in"),
        ({"cert": "CERT", "key": "BROKEN_KEY"}, "cannot be read as PEM"),
        ({"cert": "CERT", "key": "ENCRYPTED"}, "its key is encrypted; give one without a passphrase"),
    ],
)
def test_files_that_are_no_pem(authority, tmp_path, given, says):
    """Named with their option, before anything is sent; nobody is asked for a passphrase."""
    from cryptography.hazmat.primitives import serialization as form

    with open(authority.pems.key, "rb") as file:
        key = form.load_pem_private_key(file.read(), None)
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"hunter2"))
    (tmp_path / "encrypted.pem").write_bytes(secret)
    for name, kind in (("broken", "CERTIFICATE"), ("broken_key", "PRIVATE KEY")):
        (tmp_path / f"{name}.pem").write_text(f"-----BEGIN {kind}-----\nMIIB\n-----END {kind}-----\n")
    places = {name.upper(): path for name, path in authority.pems._asdict().items()}
    places |= {name.upper(): str(tmp_path / f"{name}.pem") for name in ("encrypted", "broken", "broken_key")}
    with pytest.raises(PlanError) as refused:
        tls_context(ssl.SSLContext, options(**{name: places.get(value, value) for name, value in given.items()}))

    assert says in str(refused.value), str(refused.value)
    assert "\n" not in str(refused.value)
