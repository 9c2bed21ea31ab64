"""The preflight's requests: one of each mode, one after the other, as a step's users would, and one of each tenant.

A parameter that the target refuses is changed, once each, and the request sent again; ORDER then says so.

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
    names = [tenant.name for tenant in order.tenants]
    first, others = (names[0], names[1:]) if names else (None, [])
    try:
        for mode in modes:
            while load.agree(load.ask(connection, 0, stream=mode == "stream", tenant=first)):
                pass
        Path(order_file).write_bytes(msgspec.json.encode(order))
        for tenant in others:  # whether its key is let in; the target is warm by now
            load.ask(connection, 0, stream=modes[0] == "stream", tenant=tenant)
    finally:
        connection.close()
        load.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
