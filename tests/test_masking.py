"""No spelling of a known secret stays in a text that is kept."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.masking import Masked, with_parts

SECRET = "sk-a/b+c d=é-0123456789"
ODD = 'sk-DISTINCTIVE/a+b&c"d<e>9'  # every spelling below differs from it


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"key {SECRET}, {SECRET}!", "key ***, ***!"),
        (f"/path?key={quote(SECRET, safe='')}&x", "/path?key=***&x"),
        (f"/path?key={quote(SECRET, safe='').lower()}&x", "/path?key=***&x"),
        (f"[{json.dumps(SECRET, ensure_ascii=False)}]", '["***"]'),
        (SECRET.replace("/", "\\/"), "***"),
        ("nothing here", "nothing here"),
    ],
)
def test_spellings(text, kept):
    """As it is, in a URL, in JSON."""
    assert kept == Masked([SECRET])(text)


@pytest.mark.parametrize(
    "spelled",
    [
        json.dumps(json.dumps(ODD)),
        quote(ODD),
        quote(quote(ODD, safe=""), safe=""),
        html.escape(ODD),
        html.escape(ODD).replace("&quot;", "&#34;"),
        ODD.encode().hex(),
        ODD.encode().hex().upper(),
        base64.b64encode(base64.b64encode(b"u:" + ODD.encode())).decode(),
        ODD.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace('"', '\\"'),
        ODD[::-1],
        f"{ODD[:10]}\n  {ODD[10:]}",
    ],
)
def test_a_spelling_inside_another_keeps_nothing_to_go_by(spelled):
    """Escaped twice, for HTML, in hexadecimal digits, reversed, over two lines: at most its edges stay."""
    kept = Masked([ODD])(f"refused: {spelled}.")

    assert kept.startswith("refused: ") and kept.endswith(".")
    assert "***" in kept and len(kept) < len("refused: ***.") + 14


@pytest.mark.parametrize("piece", [ODD[:20], ODD[5:18], ODD[-12:], ODD.encode().hex()[:14]])
def test_a_long_piece_is_masked_as_the_whole(piece):
    """A server that cuts a key shows most of it."""
    assert "key *** and more" == Masked([ODD])(f"key {piece} and more")


def test_secrets_beside_each_other_are_masked_one_by_one():
    """Also where case folding makes a text longer."""
    assert "İ *** *** İ" == Masked([ODD, SECRET])(f"İ {ODD} {SECRET} İ")


@pytest.mark.parametrize(
    ("value", "echoed"),
    [("sid=abc123", "no session abc123"), ("theme=x; sid=abc123", "abc123?"), ("Bearer hunter", "what is hunter")],
)
def test_a_short_part_of_a_header_is_masked(value, echoed):
    """One with a digit, and whatever stands behind a scheme; plain words and the scheme itself stay."""
    masked = Masked(with_parts(value))

    assert "***" in masked(echoed)
    assert "a bearer of theme and sid" == masked("a bearer of theme and sid")


@given(before=st.binary(max_size=12), after=st.binary(max_size=12), urlsafe=st.booleans())
def test_base64_at_any_alignment(before, after, urlsafe):
    """`Basic` credentials hold the key behind other bytes: what the key alone decides of them is masked."""
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    coded = encode(before + SECRET.encode() + after).decode()
    masked = Masked([SECRET])(coded)

    assert "***" in masked
    assert len(masked) < len(coded) - len(SECRET)


def test_no_secret_masks_nothing():
    """An empty one neither."""
    assert "text" == Masked([])("text") == Masked([""])("text")
