"""The embedded gateway's APIs of typed events: OpenAI's responses, Anthropic's messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from sweep.demo_asks import Ask, Dialect, Message, Refused, Spans, Wanted, n_words, openai_error, text_of, word

_N_OPENING = 4  # events of a response's stream before its first token


class _ResponsesBody(msgspec.Struct):
    model: str
    input: str | list[Message]
    stream: bool | None = None
    max_output_tokens: int | None = None


class _MessagesBody(msgspec.Struct):
    model: str
    messages: list[Message]
    max_tokens: int
    stream: bool | None = None


_RESPONSES_DECODER = msgspec.json.Decoder(_ResponsesBody)
_MESSAGES_DECODER = msgspec.json.Decoder(_MessagesBody)


def _event(kind: str, **told: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode({"type": kind, **told}) + b"\n\n"


def _read_responses(body: bytes) -> Wanted:
    asked = _RESPONSES_DECODER.decode(body)
    n_prompt = len(asked.input.split()) if isinstance(asked.input, str) else n_words(asked.input)
    return Wanted(asked.model, asked.stream is True, True, max(1, n_prompt), asked.max_output_tokens)


def _response(ask: Ask, status: str, **more: object) -> Mapping[str, object]:
    told: dict[str, Any] = {"id": f"resp_{ask.answer_id}", "object": "response", "status": status}
    told |= {"created_at": int(datetime.now(UTC).timestamp()), "model": ask.wanted.model, "store": False}
    return told | {"error": None, "incomplete_details": None, "output": [], "usage": None} | more


def _part(text: str) -> Mapping[str, object]:
    return {"type": "output_text", "text": text, "annotations": []}


def _item(ask: Ask, status: str, *parts: object) -> Mapping[str, object]:
    return {"type": "message", "id": f"msg_{ask.answer_id}", "role": "assistant", "status": status, "content": parts}


def _whole_response(ask: Ask) -> Mapping[str, object]:
    """Ended by its limit it is not complete: the API's own way to say `length`."""
    n_in, n_out = ask.wanted.n_prompt, ask.n_tokens
    usage = {
        "input_tokens": n_in, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": n_out, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": n_in + n_out,
    }  # fmt: skip
    status = "incomplete" if ask.finish == "length" else "completed"
    why = {"reason": "max_output_tokens"} if ask.finish == "length" else None
    output = [_item(ask, status, _part(text_of(ask)))]
    return _response(ask, status, output=output, incomplete_details=why, usage=usage)


def _place(ask: Ask) -> Mapping[str, object]:
    return {"item_id": f"msg_{ask.answer_id}", "output_index": 0, "content_index": 0}


def _responses_head(ask: Ask) -> bytes:
    begun, place = _response(ask, "in_progress"), _place(ask)
    item = _item(ask, "in_progress")
    return (
        _event("response.created", sequence_number=0, response=begun)
        + _event("response.in_progress", sequence_number=1, response=begun)
        + _event("response.output_item.added", sequence_number=2, output_index=0, item=item)
        + _event("response.content_part.added", sequence_number=3, **place, part=_part(""))
    )


def _responses_token(ask: Ask, i: int) -> bytes:
    return _event("response.output_text.delta", sequence_number=_N_OPENING + i, **_place(ask), delta=word(i))


def _responses_tail(ask: Ask, _: Spans) -> bytes:
    number, text, place, whole = _N_OPENING + ask.n_tokens, text_of(ask), _place(ask), _whole_response(ask)
    item = _item(ask, str(whole["status"]), _part(text))
    return (
        _event("response.output_text.done", sequence_number=number, **place, text=text)
        + _event("response.content_part.done", sequence_number=number + 1, **place, part=_part(text))
        + _event("response.output_item.done", sequence_number=number + 2, output_index=0, item=item)
        + _event(f"response.{whole['status']}", sequence_number=number + 3, response=whole)
    )


def _responses_error_event(refused: Refused) -> bytes:
    """Without a number, as llama.cpp sends all of its events."""
    return _event("error", code=refused.code, message=refused.message, param=None)


def _read_messages(body: bytes) -> Wanted:
    asked = _MESSAGES_DECODER.decode(body)
    return Wanted(asked.model, asked.stream is True, True, n_words(asked.messages), asked.max_tokens)


def _message(ask: Ask, **more: object) -> Mapping[str, object]:
    told = {"id": f"msg_{ask.answer_id}", "type": "message", "role": "assistant", "model": ask.wanted.model}
    return {**told, "content": [], "stop_reason": None, "stop_sequence": None, **more}


def _stop_reason(ask: Ask) -> str:
    return "max_tokens" if ask.finish == "length" else "end_turn"


def _messages_head(ask: Ask) -> bytes:
    begun = _message(ask, usage={"input_tokens": ask.wanted.n_prompt, "output_tokens": 1})
    block = {"type": "text", "text": ""}
    return _event("message_start", message=begun) + _event("content_block_start", index=0, content_block=block)


def _messages_token(_: Ask, i: int) -> bytes:
    return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": word(i)})


def _messages_tail(ask: Ask, _: Spans) -> bytes:
    ended = {"stop_reason": _stop_reason(ask), "stop_sequence": None}
    usage = {"output_tokens": ask.n_tokens}
    stop = _event("content_block_stop", index=0)
    return stop + _event("message_delta", delta=ended, usage=usage) + _event("message_stop")


def _messages_whole(ask: Ask, _: Spans) -> bytes:
    usage = {"input_tokens": ask.wanted.n_prompt, "output_tokens": ask.n_tokens}
    content = [{"type": "text", "text": text_of(ask)}]
    return msgspec.json.encode(_message(ask, content=content, stop_reason=_stop_reason(ask), usage=usage))


def _messages_error(refused: Refused) -> bytes:
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "overloaded_error"}
    kind = kinds.get(refused.status, "api_error" if refused.status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": refused.message}})


RESPONSES = Dialect(
    read=_read_responses,
    head=_responses_head,
    token=_responses_token,
    tail=_responses_tail,
    whole=lambda ask, _: msgspec.json.encode(_whole_response(ask)),
    error=openai_error,
    error_event=_responses_error_event,
)
MESSAGES = Dialect(
    read=_read_messages,
    head=_messages_head,
    token=_messages_token,
    tail=_messages_tail,
    whole=_messages_whole,
    error=_messages_error,
    error_event=lambda refused: b"event: error\ndata: " + _messages_error(refused) + b"\n\n",
)
