"""Sends one request of each mode, one after the other, as a step's users would: the preflight's requests.

A process of its own (`python -P -m sweep.ask ORDER MODE…`), because it needs gevent. Writes records like a step does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from sweep.children import die_with_parent
from sweep.load import Load
from sweep.step_files import StepOrder


def main(order_file: str, modes: list[str]) -> None:
    die_with_parent()
    order = msgspec.json.decode(Path(order_file).read_bytes(), type=StepOrder)
    load = Load(order, write_records=True)
    connection = load.connection()
    try:
        for mode in modes:
            load.ask(connection, 0, stream=mode == "stream")
    finally:
        connection.close()
        load.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
