"""What an address speaks, found by asking it: TLS or not, which API, which models. A few GETs, before any load."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
import msgspec

from sweep.endpoint import Endpoint, parse_endpoint
from sweep.errors import PlanError
from sweep.probe import Answer, Probe

OpenProbe = Callable[[str], Probe]
OLLAMA_TEXT, OLLAYA_TEXT = "Ollama is running", "Ollaya is running"
_QUESTIONS = ("/api/version", "/api/tags", "/v1/models")
_SYSTEMONE = "/v1/systemone"
_LOOK_S = 3.0
_EMBEDS = ("embedding", "embeddings", "embed")
_ANSWERS = ("completion", "chat", "vision", "tools", "insert", "thinking", "responses")


class Door(NamedTuple):
    """An address and its answer to `/`; None: no answer in HTTP."""

    url: str
    root: Answer | None


@dataclass(frozen=True, slots=True)
class Spoken:
    """What an address answered. apis: what of ours it speaks, the one to choose first; how: why that one.

    denied: a list was refused for want of a key. seen: each question and its answer in a few words, for a refusal.
    """

    url: str
    apis: tuple[str, ...] = ()
    how: str = ""
    denied: bool = False
    seen: str = ""


def knock(url: str, open_probe: OpenProbe, *, may_switch: bool) -> Door:
    """Asks `/`; of a port that speaks TLS by https if may_switch. Raises PlanError for http where it is not."""
    endpoint = parse_endpoint(url)
    root = None
    try:
        root = open_probe(url).get("/")
    except httpx.HTTPError:
        pass  # silence is told by what follows
    if root is not None and not _wants_tls(root):
        return Door(url, root)
    if not endpoint.tls and speaks_tls(endpoint):
        https = f"https://{url.removeprefix('http://')}"
        if not may_switch:
            raise PlanError(f"target {url}: the port speaks TLS; give --target {https}")
        return knock(https, open_probe, may_switch=False)
    return Door(url, root)


def speaks_tls(endpoint: Endpoint) -> bool:
    """Whether it shakes hands, whatever its certificate. False too when it cannot be told (silence)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((endpoint.host, endpoint.port), timeout=_LOOK_S) as plain,
            context.wrap_socket(plain, server_hostname=endpoint.host),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in str(error).upper()  # it wants a certificate, or another name
    except OSError:
        return False


def ask(door: Door, open_probe: OpenProbe) -> Spoken:
    """Asks /api/version, /api/tags and /v1/models, without the key first; nothing where `/` had no answer."""
    url, root = door
    if root is None:
        return Spoken(url, seen="no answer in HTTP")
    probe = open_probe(url)
    answers = {path: _get(probe, path) for path in _QUESTIONS}
    text = root.content[:200].decode("utf-8", "replace").strip()
    seen = ", ".join(f"{path} {_in_short(answer)}" for path, answer in {"/": root, **answers}.items())
    if OLLAYA_TEXT in text:
        how = f"/ says {OLLAYA_TEXT!r}; it speaks systemone too, which lets a pinned model go"
        return Spoken(url, ("ollaya-decide", "systemone"), how, seen=seen)
    apis, how = _apis({path: _content(answer) for path, answer in answers.items()}, OLLAMA_TEXT in text)
    if not apis and _takes_posts(_get(probe, _SYSTEMONE)):
        apis, how = ("systemone",), f"{_SYSTEMONE} takes POST, and no list of models was found"
    denied = any(answer is not None and answer.status in (401, 403) for answer in answers.values())
    return Spoken(url, apis, how, denied=denied, seen=seen)


def _takes_posts(answer: Answer | None) -> bool:
    """A path that is there for POST alone says so to a GET."""
    return answer is not None and answer.status == 405 and "POST" in answer.headers.get("allow", "").upper()


def embeds_only(row: Any) -> bool:
    """Whether a row of a list of models is of one that gives vectors, no text; False when that cannot be told.

    By its capabilities or type if the row has them, by its family in Ollama's list, else by `embed` in its name.
    """
    if not isinstance(row, dict):
        return False
    told = {word.lower() for key in ("capabilities", "type", "mode") for word in _words(row.get(key))}
    if told & {*_EMBEDS, *_ANSWERS}:
        return not told & set(_ANSWERS)
    details = row.get("details")
    families = _words(details.get("families")) + _words(details.get("family")) if isinstance(details, dict) else []
    if families and all("bert" in family.lower() for family in families):
        return True
    return any("embed" in name.lower() for name in _words(row.get("id")) + _words(row.get("name")))


def _apis(contents: Mapping[str, Any], says_ollama: bool) -> tuple[tuple[str, ...], str]:
    """Which is chosen if both are spoken: OpenAI's, which most clients of a gateway use; Ollama's of Ollama itself,
    whose OpenAI stream hides an error in mid-stream (contracts: it becomes an empty chunk)."""
    version, tags, models = (contents[path] for path in _QUESTIONS)
    has_version = isinstance(version, dict) and isinstance(version.get("version"), str)
    ollama = _lists(tags, "models") and (has_version or says_ollama)
    openai = _lists(models, "data")
    if ollama and openai and says_ollama:
        how = f"/ says {OLLAMA_TEXT!r}; it speaks openai-chat too, which hides errors in mid-stream there"
        return ("ollama-chat", "openai-chat"), how
    if ollama and openai:
        return ("openai-chat", "ollama-chat"), "/v1/models lists models; it speaks ollama-chat too: --api chooses"
    if ollama:
        return ("ollama-chat",), "/api/tags lists models"
    return (("openai-chat",), "/v1/models lists models") if openai else ((), "")


def _lists(content: Any, key: str) -> bool:
    return isinstance(content, dict) and isinstance(content.get(key), list)


def _get(probe: Probe, path: str) -> Answer | None:
    try:
        return probe.get(path)
    except httpx.HTTPError:
        return None


def _content(answer: Answer | None) -> Any:
    """The JSON of a success, else None."""
    if answer is None or not answer.is_success:
        return None
    try:
        return msgspec.json.decode(answer.content)
    except (msgspec.DecodeError, RecursionError):
        return None


def _in_short(answer: Answer | None) -> str:
    return "gives no answer" if answer is None else f"answers {answer.status}"


def _wants_tls(answer: Answer) -> bool:
    """A TLS port that understood the plain request and says so (nginx, Go)."""
    return answer.status == 400 and b"HTTPS" in answer.content.upper()


def _words(value: Any) -> list[str]:
    each = value if isinstance(value, list) else [value]
    return [word for word in each if isinstance(word, str)]
