"""--prompts: a file that is refused line by line, sent in a shuffled order, and never kept."""

from __future__ import annotations

import hashlib
import json
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from sweep.dialects import Ask
from sweep.errors import PlanError, RunError
from sweep.plan import SweepPlan, parse_levels
from sweep.prompt_file import changed_why, check_prompts, evidence_of
from sweep.prompts import Prompt, Shuffled, read_prompts, without_prompt
from sweep.request import prompt_text
from sweep.senders import Senders
from sweep.step_files import StepOrder

TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Rivers?"}]}]


def plan_of(path, **given) -> SweepPlan:
    return SweepPlan(target="http://127.0.0.1:9", levels=parse_levels("1"), prompts=str(path), **given)


def write(path, *lines) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def test_prompts_and_conversations_are_read(tmp_path):
    """An empty line is none; the hash is the file's."""
    path = write(tmp_path / "p.jsonl", {"prompt": "Name a river."}, "", {"messages": TALK, "max_tokens": 5})
    prompts, sha256 = read_prompts(path)

    assert [Prompt(1, "Name a river."), Prompt(3, None, TALK, 5)] == prompts
    assert hashlib.sha256((tmp_path / "p.jsonl").read_bytes()).hexdigest() == sha256
    assert {"path": path, "sha256": sha256, "count": 2} == evidence_of(plan_of(path))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("secret words, no JSON", "no JSON"),
        ('{"prompt": "secret words"', "no JSON"),
        ('["secret words"]', "no JSON object"),
        ({"promt": "secret words"}, r"unknown key 'promt' \(did you mean prompt\?\)"),
        ({"prompt": "secret words", "messages": TALK}, "both prompt and messages"),
        ({"max_tokens": 5}, "neither prompt nor messages"),
        ({"prompt": " "}, "its prompt is no text, or empty"),
        ({"prompt": ["secret words"]}, "its prompt is no text, or empty"),
        ({"messages": []}, "its messages are no list of objects, each with a role"),
        ({"messages": [{"content": "secret words"}]}, "each with a role"),
        ({"prompt": "secret words", "max_tokens": 0}, "its max_tokens must be a whole number"),
        ({"prompt": "secret words", "max_tokens": True}, "its max_tokens must be a whole number"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, says):
    """What stands in it is not repeated."""
    path = write(tmp_path / "p.jsonl", {"prompt": "fine"}, line)
    with pytest.raises(PlanError, match=rf"--prompts {path}:2: .*{says}") as refused:
        check_prompts(plan_of(path))

    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_cannot_be_sent_is_refused(tmp_path):
    empty = write(tmp_path / "empty.jsonl", "")
    talks = write(tmp_path / "talks.jsonl", {"prompt": "p"}, {"messages": TALK})
    long = write(tmp_path / "long.jsonl", {"prompt": "p", "max_tokens": 200})
    for path, given, says in (
        (empty, {}, "holds no prompt"), (str(tmp_path / "none"), {}, "No such file"), (str(tmp_path), {}, "directory"),
        (talks, {"api": "ollama-generate"}, "talks.jsonl:2: ollama-generate takes no messages"),
        (long, {}, "long.jsonl:1: its max_tokens 200 is above --max-tokens 128"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=says):
            check_prompts(plan_of(path, **given))
    check_prompts(plan_of(talks, api="openai-chat"))
    check_prompts(plan_of(talks))
    check_prompts(plan_of(long, max_tokens=200))


def test_each_prompt_comes_once_before_any_again():
    prompts = [Prompt(i, f"p{i}") for i in range(7)]
    order = Shuffled(prompts, 3)
    rounds = [[order.next().line for _ in range(7)] for _ in range(4)]

    assert all(set(range(7)) == set(each) for each in rounds)
    assert len(set(map(tuple, rounds))) > 1
    again = Shuffled(prompts, 3)
    assert rounds[0] == [again.next().line for _ in range(7)]


def test_processes_share_the_prompts(tmp_path):
    """Three of 7 prompts: together each once; of fewer prompts than processes each has them all."""
    order = {"step": "s", "out_dir": "", "url": "", "api": "", "model": "", "users": 1, "max_tokens": 1,
             "prompt_words": 1, "seed": 5, "n_processes": 3}  # fmt: skip

    def asked(path, n):
        orders = [StepOrder(**order, worker=worker, prompts_file=path) for worker in ("w01", "w02", "w03")]
        return [sorted({each.next_ask(True).prompt for _ in range(n)}) for each in (Senders(one, {}) for one in orders)]

    seven = asked(write(tmp_path / "7.jsonl", *({"prompt": f"p{i}"} for i in range(7))), 3)
    assert [f"p{i}" for i in range(7)] == sorted(prompt for each in seven for prompt in each)
    assert [["p0"]] * 3 == asked(write(tmp_path / "1.jsonl", {"prompt": "p0"}), 2)


def test_a_file_that_changes_is_found(tmp_path):
    """By its content; a file that is gone says so."""
    path = write(tmp_path / "p.jsonl", {"prompt": "p"})
    sent = evidence_of(plan_of(path))

    assert changed_why(plan_of(path), sent) is None
    write(tmp_path / "p.jsonl", {"prompt": "q"})
    assert "was changed while its prompts were sent" in changed_why(plan_of(path), sent)
    (tmp_path / "p.jsonl").unlink()
    assert "No such file" in changed_why(plan_of(path), sent)
    with pytest.raises(RunError, match="after it was checked"):
        evidence_of(plan_of(path))


def test_an_error_that_repeats_the_prompt_is_masked():
    """What the server says beside it stays."""
    prompt = Ask("m", 'My "diagnosis" is very private.', 8, True, {})
    talk = Ask("m", "", 8, True, {}, [*TALK, {"role": "user", "content": "What of my private life?"}])

    said = 'bad input: My "diagnosis" is very private. (offset 3)'
    assert "bad input: *** (offset 3)" == without_prompt(said, prompt)
    assert "cannot read:***" == without_prompt('cannot read: \\"diagnosis\\" is very pri', prompt)
    assert "no ***" == without_prompt("no What of my private life?", talk)
    assert "queue full, try later" == without_prompt("queue full, try later", prompt)
    assert without_prompt(None, prompt) is None
    foreign = Ask("m", "Ünal Müller aus İzmir: 患者张三的诊断结果", 8, True, {})
    assert "bad: ***" == without_prompt(f"bad: {json.dumps(foreign.prompt)[1:-1]}", foreign)
    assert "bad: ***" == without_prompt(f"bad: {foreign.prompt.upper()}", foreign)
    assert "what is ***? say more" == without_prompt("what is LUPUS? say more", Ask("m", "lupus", 8, True, {}))
    assert "what is ***? say more" == without_prompt("what is lupus? say more", Ask("m", "lupus", 8, True, {}))


@hypothesis.given(st.text("ab", min_size=12, max_size=40), st.text("ab", max_size=60))
def test_every_run_of_the_prompt_is_masked_and_nothing_else(prompt, said):
    """As by looking at each place."""
    starts = [i for i in range(len(said) - 11) if said[i : i + 12] in prompt]
    hidden = {i + k for i in starts for k in range(12)}
    kept = "".join("*" if i in hidden else each for i, each in enumerate(said))

    assert re.sub(r"\*+", "***", kept) == without_prompt(said, Ask("m", prompt, 8, True, {}))


def test_a_shared_prefix_stands_before_the_nonce():
    """The same in every step of a run, another in another run; the rest differs by step."""
    one, two, other = prompt_text(20, 1, 8, 7), prompt_text(20, 2, 8, 7), prompt_text(20, 1, 8, 9)
    before = [text.partition("0" * 16)[0].split() for text in (one, two, other)]

    assert 8 == len(before[0])
    assert before[0] == before[1] != before[2]
    assert one != two
    assert len(prompt_text(20, 1).split()) == len(one.split())
    assert prompt_text(20, 1).startswith("0" * 16)
