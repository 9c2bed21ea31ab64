"""What was declared, taken apart and compared: names, versions, programs that are no build, headers not to keep."""

from __future__ import annotations

import pytest

from sweep.errors import PlanError
from sweep.subject import (
    check_kept_headers,
    check_subject,
    is_same_product,
    is_same_version,
    not_the_build,
    parse_subject,
)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("0.7.3", "0.7.3", True),
        ("0.7.3", "v0.7.3", True),
        ("V0.7.3", "0.7.3", True),
        ("1.2", "1.2.0", True),
        ("1.2.0+cu121", "1.2.0", True),
        ("1.2.0-RC1", "1.2.0-rc1", True),
        ("0.7.3", "0.7.3-rc1", False),
        ("0.7.3", "0.7.30", False),
        ("0.7.3", "0.7", False),
        ("10", "1", False),
        ("1.2.0+cu121", "1.2.0+cpu", False),
        ("b1-571d0d5", "b1-571d0d5", True),
        ("b1", "b1-571d0d5", False),
        ("vulkan", "ulkan", False),
    ],
)
def test_versions_are_compared_as_people_mean_them(first, second, same):
    """A v, capitals, zeros at the end and one-sided build metadata do not count; everything else does."""
    assert (same, same) == (is_same_version(first, second), is_same_version(second, first))


@pytest.mark.parametrize(
    ("declared", "product", "same"),
    [
        ("litellm", "LiteLLM", True),
        ("my-litellm", "LiteLLM", True),
        ("llama-server", "llama.cpp", True),
        ("demo-gateway", "Demo gateway", True),
        ("fair-gateway", "Ollama", False),
        ("ollaya", "Ollama", False),
    ],
)
def test_a_product_is_known_in_any_spelling(declared, product, same):
    """Names differ in case and dashes only."""
    assert same == is_same_product(declared, product)


@pytest.mark.parametrize(
    ("exe", "why"),
    [
        ("/usr/bin/python3.11", "python3.11 is an interpreter"),
        ("/usr/bin/python3.11 (deleted)", "python3.11 is an interpreter"),
        ("/opt/node-v20/bin/node", "node is an interpreter"),
        ("/bin/busybox", "busybox is an interpreter"),
        ("/usr/lib/jvm/21/bin/java", "java is a runtime"),
        ("/usr/bin/tini", "tini is a supervisor"),
        ("/usr/local/bin/ollama", None),
        ("/opt/pythonic-gateway", None),
        ("/srv/shed", None),
    ],
)
def test_a_program_that_runs_any_build_identifies_none(exe, why):
    """By the name of its file."""
    assert why == not_the_build(exe)


@pytest.mark.parametrize(
    ("subject", "digest", "words"),
    [
        ("litellm", None, "write NAME@VERSION"),
        ("litellm@", None, "write NAME@VERSION"),
        ("@1.2", None, "write NAME@VERSION"),
        ("a b@1.2", None, "write NAME@VERSION"),
        ("litellm@1.2@3", None, "write NAME@VERSION"),
        ("x@sha256:abc", None, "goes to --subject-digest"),
        (None, "abc", "64 hexadecimal"),
        (None, "sha256:" + "a" * 63, "64 hexadecimal"),
        (None, "sha256:" + "g" * 64, "64 hexadecimal"),
        (None, "sha512:" + "a" * 64, "64 hexadecimal"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(subject, digest, words):
    """With how to write it."""
    with pytest.raises(PlanError, match=words) as caught:
        check_subject(subject, digest)

    assert "\n" not in str(caught.value)


def test_what_can_be_read_is_taken_apart():
    """Image names with a registry and versions with metadata too."""
    check_subject("ghcr.io/berriai/litellm@v1.52.3+cu121", "sha256:" + "aB" * 32)

    declared = parse_subject("ghcr.io/berriai/litellm@v1.52.3+cu121")
    assert ("ghcr.io/berriai/litellm", "v1.52.3+cu121") == (declared.name, declared.version)


@pytest.mark.parametrize(
    "name",
    ["Set-Cookie", "authorization", "Proxy-Authenticate", "X-Api-Key", "x-auth-token", "token", "X-Session-Id",
     "x-amz-security-token", "x-client-secret", "x-token", "x-user-token", "x-api-token", "x-jwt", "x-otp", "x-sig",
     "cf-access-jwt-assertion", "X-Subscription-Key", "two words", "x:y", ""],
)  # fmt: skip
def test_headers_that_carry_secrets_are_not_kept(name):
    """Nor what is no header's name."""
    with pytest.raises(PlanError, match="--keep-header"):
        check_kept_headers([name])


def test_a_value_given_with_the_name_is_not_repeated():
    """It may be a secret."""
    with pytest.raises(PlanError) as caught:
        check_kept_headers(["Authorization: Bearer sk-123"])

    assert "sk-123" not in str(caught.value)


def test_other_headers_are_kept_up_to_eight():
    """A count of tokens is no token; the same name twice is one."""
    check_kept_headers(
        ["x-served-by", "X-Ratelimit-Remaining-Tokens", "Via", "x-time-to-first-token", "x-cache", "X-Served-By"]
    )
    with pytest.raises(PlanError, match="at most 8"):
        check_kept_headers([f"x-{i}" for i in range(9)])
