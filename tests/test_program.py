"""What a running program's file says of itself: ELF machine, build ids, container, also when the file is gone."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from sampler_kit import run

from sampler.program import container_id, parse_program

BUILD_ID = bytes(range(20))
GO_BUILD_ID = b"abc/def/ghi"


def note(owner: bytes, kind: int, content: bytes, order: str = "<", align: int = 4) -> bytes:
    name = owner + b"\0"
    head = struct.pack(order + "III", len(name), len(content), kind) + name
    head += b"\0" * (-len(head) % align)
    return head + content + b"\0" * (-len(content) % align)


def elf(notes: bytes, *, is_64: bool = True, order: str = "<", machine: int = 183, align: int = 4) -> bytes:
    """A header, one PT_NOTE, and the notes; by the layout of elf(5)."""
    ident = b"\x7fELF" + bytes([1 + is_64, 1 if order == "<" else 2, 1]) + bytes(9)
    if is_64:
        head = struct.pack(order + "HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
        segment = struct.pack(order + "IIQQQQQQ", 4, 4, 120, 0, 0, len(notes), len(notes), align)
    else:
        head = struct.pack(order + "HHIIIIIHHHHHH", 2, machine, 1, 0, 52, 0, 0, 52, 32, 1, 0, 0, 0)
        segment = struct.pack(order + "IIIIIIII", 4, 84, 0, 0, len(notes), len(notes), 4, align)
    return ident + head + segment + notes


def parse(content: bytes, tmp_path: Path):
    path = tmp_path / "program"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return parse_program(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("made", "arch"),
    [
        ({}, "aarch64"),
        ({"machine": 62}, "x86_64"),
        ({"is_64": False, "machine": 40}, "arm"),
        ({"order": ">", "machine": 22}, "s390x"),
        ({"is_64": False, "order": ">", "machine": 20}, "ppc"),
        ({"machine": 9999}, "machine 9999"),
        ({"align": 8}, "aarch64"),
    ],
)
def test_ids_and_machine_of_every_layout(tmp_path, made, arch):
    """Both classes, both byte orders, notes aligned to 4 and 8; another owner's note of the same type is no id."""
    order, align = made.get("order", "<"), made.get("align", 4)
    notes = note(b"XYZ", 3, b"other", order, align) + note(b"GNU", 3, BUILD_ID, order, align)
    found = parse(elf(notes + note(b"Go", 4, GO_BUILD_ID, order, align), **made), tmp_path)

    assert (arch, BUILD_ID.hex(), GO_BUILD_ID.decode()) == (found.arch, found.build_id, found.go_build_id)


def test_a_program_without_notes_has_no_id(tmp_path):
    """None, not an empty text."""
    found = parse(elf(b""), tmp_path)

    assert ("aarch64", None, None) == (found.arch, found.build_id, found.go_build_id)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n" + b"x" * 100, b"\x7fELF" + b"\xff" * 200, elf(b"")[:30]])
def test_what_is_no_elf_file_is_named_so(tmp_path, content):
    """ValueError, whatever the bytes."""
    with pytest.raises(ValueError):
        parse(content, tmp_path)


def test_no_bytes_make_it_read_without_bound_or_fail_otherwise(tmp_path):
    """A thousand damaged files: an answer or ValueError."""
    chance = random.Random(7)
    whole = elf(note(b"GNU", 3, BUILD_ID) + note(b"Go", 4, GO_BUILD_ID))
    for _ in range(1000):
        damaged = bytearray(whole[: chance.randrange(20, len(whole) + 1)])
        for _ in range(chance.randrange(8)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            parse(bytes(damaged), tmp_path)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        (b"0::/system.slice/docker-" + b"a1" * 32 + b".scope\n", "a1" * 32),
        (b"12:pids:/docker/" + b"0f" * 32 + b"\n1:name=systemd:/docker/" + b"0f" * 32 + b"\n", "0f" * 32),
        (b"0::/kubepods.slice/pod1/" + b"aa" * 32 + b"/" + b"bb" * 32 + b"\n", "bb" * 32),
        (b"0::/user.slice/session-1.scope\n", None),
        (b"0::/x/" + b"a1" * 33 + b"\n", None),
        (b"0::/../..\n", None),
    ],
)
def test_a_container_is_named_by_its_64_digits(cgroup, found):
    """The innermost; a longer run of digits is something else."""
    assert found == container_id(cgroup)


def test_a_running_program_says_its_build_also_after_its_file_is_gone(tmp_path):
    """The ids are those readelf prints; deleting the file changes only that it is said to be deleted."""
    program = tmp_path / "gateway"
    shutil.copy(shutil.which("sleep"), program)
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    readelf = shutil.which("readelf")
    wanted = None
    if readelf is not None:
        notes = subprocess.run([readelf, "-n", program], capture_output=True, text=True, check=True).stdout
        wanted = re.search(r"Build ID: (\w+)", notes)
    with subprocess.Popen([program, "60"]) as process:
        try:
            before = json.loads(run("once", "--pid", process.pid).stdout)["identity"]
            program.unlink()
            after = json.loads(run("once", "--pid", process.pid).stdout)
        finally:
            process.kill()

    assert (str(program), digest, False) == tuple(before[name] for name in ("exe", "exe_sha256", "exe_deleted"))
    assert platform.machine() == before["arch"]
    if wanted is not None:
        assert wanted[1] == before["build_id"]
    assert before | {"exe": f"{program} (deleted)", "exe_deleted": True} == after["identity"]
    assert "absent" == after["why"]["identity.go_build_id"]
