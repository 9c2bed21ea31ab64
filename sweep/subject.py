"""What the operator says was tested, and how it is compared with what was seen: names, versions, digests. Pure.

A version counts as an answer about the declared product when the answer names that product or none. Ollama's paths are
imitated by many gateways, so that an answer as Ollama contradicts no other name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sweep.errors import PlanError
from sweep.secret_names import is_key, is_secret_name

MAX_KEPT_HEADERS = 8  # each costs bytes in every record
IMITATED = ("Ollama",)
_SUBJECT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]{0,79})@([A-Za-z0-9][A-Za-z0-9._+~-]{0,63})")
_DIGEST = re.compile(r"sha256:[0-9A-Fa-f]{64}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")  # a token, RFC 9110 §5.6.2
# Programs that run any build: their file says nothing of what was tested. Pattern of the file's name, and what it is.
_NO_BUILD = (
    (r"(python|pypy|ruby|perl|php|lua|node|nodejs|luajit|tclsh|php-fpm)[0-9.]*t?", "an interpreter"),
    (r"deno|bun|Rscript|R|guile|(ba|da|z|k|tc|fi)?sh|busybox", "an interpreter"),
    (r"java|dotnet|mono|beam|beam\.smp|wasmtime|wasmer", "a runtime"),
    (r"tini|tini-static|dumb-init|docker-init|catatonit|s6-.*|runsv|supervise", "a supervisor"),
    (r"conmon|containerd-shim.*|docker-proxy", "a container's helper"),
)


@dataclass(frozen=True, slots=True)
class Declared:
    """--subject taken apart."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class AnsweredVersion:
    """A version the target told. product: whose, None when the answer does not say."""

    version: str
    product: str | None
    source: str

    def __str__(self) -> str:
        return f"{self.source} answers {self.product + ' ' if self.product else ''}{self.version}"


@dataclass(frozen=True, slots=True)
class Compared:
    """The declared version and the answers. answer: the one that decided, None when nothing answered for it."""

    how: Literal["equal", "differs", "both", "unanswered"]
    reason: str
    answer: AnsweredVersion | None = None


def parse_subject(text: str) -> Declared:
    """NAME@VERSION. Raises PlanError."""
    found = _SUBJECT.fullmatch(text)
    if found is None:
        is_digest = "sha256:" in text
        hint = "; a digest goes to --subject-digest" if is_digest else ""
        raise PlanError(f"--subject {text[:100]!r}: write NAME@VERSION, like litellm@1.52.3{hint}")
    return Declared(found[1], found[2])


def check_subject(subject: str | None, digest: str | None) -> None:
    """Raises PlanError when either cannot be read."""
    if subject is not None:
        parse_subject(subject)
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise PlanError(
            f"--subject-digest {digest[:100]!r}: write sha256: and 64 hexadecimal digits, as sha256sum prints them"
        )


def check_kept_headers(names: Sequence[str]) -> None:
    """Raises PlanError for what is no header's name, or names one that carries secrets."""
    for name in names:
        if not _HEADER.fullmatch(name) or is_key(name):
            # Not repeated: whoever writes a value behind the name may have written a secret.
            raise PlanError("--keep-header: give the NAME of a response header alone, like x-served-by")
        if is_secret_name(name):
            raise PlanError(f"--keep-header {name}: its values may open doors, they are not kept; name another header")
    if len({name.lower() for name in names}) > MAX_KEPT_HEADERS:
        raise PlanError(f"--keep-header: {len(names)} headers; at most {MAX_KEPT_HEADERS} are kept, drop some")


def compare(subject: str, answers: Sequence[AnsweredVersion], asked_why: str | None) -> Compared:
    """How a declared NAME@VERSION compares with every version answered. asked_why: what kept it from being asked."""
    declared = parse_subject(subject)
    answers = tuple(dict.fromkeys(answers))
    mine = [each for each in answers if each.product is None or is_same_product(declared.name, each.product)]
    equal = [each for each in mine if is_same_version(declared.version, each.version)]
    other = [each for each in mine if each not in equal]
    foreign = [each for each in answers if each not in mine and each.product not in IMITATED]
    if other:
        told = "; ".join(map(str, other[:3]))
        if equal:
            return Compared("both", f"{equal[0]}, but {told}", equal[0])
        return Compared("differs", f"declared {subject}, but {told}", other[0])
    if equal:
        return Compared("equal", f"{equal[0]}, as declared", equal[0])
    if foreign:
        return Compared("differs", f"declared {subject}, but {foreign[0]}", foreign[0])
    if answers:
        return Compared("unanswered", f"declared {subject}; {answers[0]}, which is about another product")
    why = asked_why or "no path and no header tells one"
    return Compared("unanswered", f"declared {subject}; the target answers no version ({why})")


def not_the_build(exe: str) -> str | None:
    """Why a program file does not identify what was tested (`python3.11 is an interpreter`), or None. exe: its path."""
    name = exe.removesuffix(" (deleted)").rpartition("/")[2]
    what = next((what for pattern, what in _NO_BUILD if re.fullmatch(pattern, name)), None)
    return None if what is None else f"{name} is {what}"


def is_same_version(declared: str, answered: str) -> bool:
    """Equal but for a leading v, capitals, zeros at the end of the numbers, and build metadata that only one has.

    0.7.3 and 0.7.3-rc1 differ; 1.2, v1.2.0 and 1.2.0+cu121 do not; 1.2.0+cpu and 1.2.0+cu121 do.
    """
    (first, first_build), (second, second_build) = _plain(declared), _plain(answered)
    return first == second and (not first_build or not second_build or first_build == second_build)


def is_same_product(declared: str, product: str) -> bool:
    """The product's name, in any spelling, is in the declared one: `my-litellm` is LiteLLM, `fair-gateway` is not."""
    mine = _letters(declared)
    return any(_letters(name) in mine for name in (product, *_ALSO_CALLED.get(_letters(product), ())))


# Other names a product is declared by.
_ALSO_CALLED = {"llamacpp": ("llama-server",), "demogateway": ("demo",)}


def _plain(version: str) -> tuple[str, str]:
    text = version.strip().lower()
    text = text[1:] if re.match(r"v[0-9]", text) else text
    release, _, build = text.partition("+")
    numbers = re.match(r"[0-9]+(\.[0-9]+)*", release)
    if numbers is not None:
        release = re.sub(r"(\.0+)+$", "", numbers[0]) + release[numbers.end() :]
    return release, build


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
