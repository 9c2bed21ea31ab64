"""The prompts of --prompts: one JSON object a line, checked before any load, sent as they are. Never kept in evidence.

What is recorded of the file is in `prompt_file`.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sweep.dialects import Ask
from sweep.errors import PlanError
from sweep.masking import MASK, PIECE
from sweep.slo import did_you_mean

MAX_BYTES = 256 * 2**20  # each load process holds all of it
_SHORTEST = 4  # characters; less may stand in any word
_BLOCK = PIECE // 2
_KEYS = ("prompt", "messages", "max_tokens")
_WRITE = 'write {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line: a prompt or a conversation, and its own limit of output tokens if it has one. line: its number."""

    line: int
    prompt: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    max_tokens: int | None = None


class Shuffled:
    """All prompts in a seeded order, each once; when they are used up all again, in another order."""

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        self._prompts = prompts
        self._random = random.Random(seed)
        self._left: list[int] = []

    def next(self) -> Prompt:
        if not self._left:
            self._left = self._random.sample(range(len(self._prompts)), len(self._prompts))
        return self._prompts[self._left.pop()]


def read_prompts(path: str) -> tuple[list[Prompt], str]:
    """(the prompts, sha256 of the file). Raises PlanError that names the line, never what stands in it."""
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise PlanError(f"--prompts {path} is larger than {MAX_BYTES // 2**20} MiB; give fewer prompts")
        content = Path(path).read_bytes()
    except OSError as error:
        raise PlanError(f"--prompts {path}: {error.strerror}; give a file with one JSON object a line") from error
    lines = enumerate(content.split(b"\n"), 1)
    prompts = [_parsed(f"--prompts {path}:{number}", number, line) for number, line in lines if line.strip()]
    if not prompts:
        raise PlanError(f"--prompts {path} holds no prompt; {_WRITE}, one a line")
    return prompts, hashlib.sha256(content).hexdigest()


def without_prompt(text: str | None, ask: Ask) -> str | None:
    """An error's text without what a server repeated of the prompt: every run of it of PIECE characters or more.

    Whatever its case, and escaped as JSON does it, in UTF-8 or in ASCII. A prompt that is shorter is masked whole.
    """
    if text is None:
        return None
    sent = [ask.prompt, *_texts(ask.messages)]
    sent += [escaped for each in sent for escaped in (msgspec.json.encode(each).decode()[1:-1], json.dumps(each)[1:-1])]
    for each in sent:
        if _SHORTEST <= len(each) < PIECE:
            text = re.sub(re.escape(each), MASK, text, flags=re.IGNORECASE)
    known = "\n".join(dict.fromkeys(_lower(" ".join(each.split())) for each in sent))
    lower = _lower(text)
    hidden = [False] * len(text)
    # Each look through a long prompt holds up all other requests. A run of PIECE characters has one of these blocks.
    blocks = [i for i in range(0, len(text) - _BLOCK + 1, _BLOCK) if lower[i : i + _BLOCK] in known]
    starts = {start for i in blocks for start in range(i + _BLOCK - PIECE, i + 1) if 0 <= start <= len(text) - PIECE}
    for start in sorted(starts):
        if lower[start : start + PIECE] in known:
            hidden[start : start + PIECE] = [True] * PIECE
    kept = [None if hide else each for each, hide in zip(text, hidden, strict=True)]
    return "".join(MASK if each is None else each for i, each in enumerate(kept)
                   if each is not None or i == 0 or kept[i - 1] is not None)  # fmt: skip


def _lower(text: str) -> str:
    """As many characters as the text has."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(x if len(x.lower()) > 1 else x.lower() for x in text)


def _texts(value: Any) -> list[str]:
    """Every text inside messages, whatever parts they have."""
    if isinstance(value, str):
        return [value]
    parts = list(value.values()) if isinstance(value, Mapping) else value
    return [text for part in parts for text in _texts(part)] if isinstance(parts, list) else []


def _parsed(where: str, number: int, line: bytes) -> Prompt:
    try:
        content = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PlanError(f"{where}: no JSON ({error}); {_WRITE}") from error
    if not isinstance(content, dict):
        raise PlanError(f"{where}: no JSON object; {_WRITE}")
    strange = next((key for key in content if key not in _KEYS), None)
    if strange is not None:
        near = did_you_mean(strange, _KEYS)
        raise PlanError(f"{where}: unknown key {strange[:40]!r}{near}; known: {', '.join(_KEYS)}")
    if ("prompt" in content) == ("messages" in content):
        both = "both prompt and messages" if "prompt" in content else "neither prompt nor messages"
        raise PlanError(f"{where}: {both}; {_WRITE}")
    prompt, messages, limit = (content.get(key) for key in _KEYS)
    if "prompt" in content and not (isinstance(prompt, str) and prompt.strip()):
        raise PlanError(f"{where}: its prompt is no text, or empty; {_WRITE}")
    if "messages" in content and not _is_conversation(messages):
        raise PlanError(f"{where}: its messages are no list of objects, each with a role; {_WRITE}")
    if "max_tokens" in content and not (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        raise PlanError(f"{where}: its max_tokens must be a whole number, 1 or more")
    return Prompt(number, prompt, messages, limit)


def _is_conversation(messages: object) -> bool:
    return (
        isinstance(messages, list) and bool(messages)
        and all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages)
    )  # fmt: skip
