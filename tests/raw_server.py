"""A listener in a thread, a function a connection: for what a script of the fake gateway cannot say."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

from play import CHAT_HEAD, DONE, FINISH, LAST_CHUNK, chunk, content

DEADLINE_S = 10.0
OK = CHAT_HEAD + chunk(content("A") + FINISH + DONE) + LAST_CHUNK


@contextlib.contextmanager
def server(*serve, context: ssl.SSLContext | None = None):
    """A listener whose n-th connection is given to the n-th function, in a thread; yields its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(DEADLINE_S)
    faults: list[BaseException] = []

    def run() -> None:
        try:
            for one in serve:
                client, _ = listener.accept()
                client.settimeout(DEADLINE_S)
                with client if context is None else context.wrap_socket(client, server_side=True) as connection:
                    one(connection)
        except BaseException as error:  # noqa: BLE001 - the test would lose it
            faults.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join(DEADLINE_S)
        listener.close()
    assert [] == faults


def read_request(connection) -> bytes:
    """One whole request; its body is JSON and ends with a brace."""
    data = b""
    while b"\r\n\r\n" not in data or not data.endswith(b"}"):
        more = connection.recv(1 << 16)
        if not more:
            return b""
        data += more
    return data


def answer_ok(connection) -> None:
    assert read_request(connection)
    connection.sendall(OK)


def wait_for_close(connection) -> None:
    assert b"" == connection.recv(1)
