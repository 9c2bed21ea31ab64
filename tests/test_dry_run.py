"""What --dry-run prints: every setting of the plan, and nothing secret."""

from dataclasses import fields, replace

from sweep.dry_run import describe
from sweep.plan import Level, SweepPlan, parse_levels
from sweep.plan_steps import steps
from sweep.slo import parse_slo


def make_plan(levels="1,8", slos=(), **given_fields):
    return SweepPlan(
        **{"target": "http://127.0.0.1:8080"} | given_fields,
        levels=parse_levels(levels),
        slos=tuple(parse_slo(text) for text in slos),
    )


def test_dry_run_tells_every_setting_slo_step_and_bound():
    """Nothing that will happen is left out, and nothing secret is in it but names."""
    plan = make_plan(slos=["stream.ttft_ms.p95<=500@8"], api_key_env="GATEWAY_KEY", sustain=Level(1), drain_s=7.0)
    lines = describe(plan)

    assert (
        "SLO stream.ttft_ms.p95<=500@8: 95 % of streaming requests at level 8 and below "
        "get their first token within 500 ms"
    ) in lines
    assert "api key: from environment variable GATEWAY_KEY" in lines
    assert {"levels: 1, 8 requests in flight", "sustained level: 1", "drain: at most 7s"} <= set(lines)
    assert "caps: 20,000 requests, 5,000,000 output tokens, 2h" in lines
    assert [step.id for step in steps(plan)] == [line.split()[1][:-1] for line in lines if line.startswith("step ")]
    # 10 + 60 + 15 s a step; longest: 30 + 300 + 7 + 15 s.
    assert lines[-2].startswith(
        "time: 5.7 min for 4 steps if answers are quick; slower answers stretch it, to ~23.5 min"
    )
    assert lines[-1].startswith("not tested by this plan: restart, drain, backend loss, tenants")


def test_dry_run_without_an_slo_says_what_that_costs():
    """The operator learns before the run that its verdict cannot be READY."""
    lines = describe(make_plan())

    assert "SLO: none; capacity is not judged and the verdict is at most READY WITH WARNINGS" in lines
    assert "sustained level: 8 (default: the highest)" in lines


def test_every_option_of_the_plan_shows_in_the_dry_run():
    """A new option cannot be forgotten: changing any one changes what is printed."""
    base = make_plan("2,4")
    changed = {
        "target": "http://127.0.0.1:9", "levels": parse_levels("2,4,5"), "sustain": Level(2), "gateway_listen": "h:1",
        "api": "ollama-chat", "model": "m", "mode": "stream", "duration_s": 61.0, "max_step_s": 301.0, "warmup_s": 11.0,
        "drain_s": 1.0, "cooldown_s": 16.0, "cycles": 2, "max_tokens": 9, "prompt_tokens": 9, "extra_body": {"k": 1},
        "slos": (parse_slo("error_ratio<=1%"),), "gateway_pid": 9, "out_dir": "d", "name": "n", "api_key_env": "K",
        "health_path": "/h", "ready_path": "/r", "metrics_path": "/m", "metrics_key_env": "K", "allow_hosts": ("h",),
        "acknowledge_load": "a: b", "timeout_s": 601.0, "connect_timeout_s": 6.0, "first_byte_timeout_s": 6.0,
        "idle_timeout_s": 6.0, "load_timeout_s": 6.0, "max_requests": 19_999, "max_output_tokens": 4_999_999,
        "max_time_s": 7199.0, "seed": 1, "strict": True, "quiet": True, "demo": True, "gateway": "g",
        "labels": {"k": "v"}, "headers": {"X-A": "E"}, "headers_plain": {"X-B": "v"}, "key_style": "x-api-key",
        "api_key_cmd": "cmd", "ca_file": "ca", "cert": "c", "key": "k", "insecure": True, "locustfile": "f.py",
        "user_classes": ("A",), "subject": "g@1", "subject_digest": "sha256:0", "keep_headers": ("X-C",),
        "quiet_check_s": 3.0, "gateway_pid_given": "port:9", "arrivals": "constant", "stream_share": 0.25,
        "think_time_s": 1.0, "ramp_s": 2.0, "cancel_ratio": 0.1, "cancel_at": ("mid_stream",), "no_keepalive": True,
        "auto_max": Level(64), "auto_steps": 9, "leak_cycles": 5, "tenants": ("a=KEY_A", "b=KEY_B"), "prompts": "p",
        "shared_prefix": 64, "beside": {"direct": "http://127.0.0.1:7"}, "beside_pids": {"direct": "7"},
        "beside_models": {"direct": "m"}, "beside_key_envs": {"direct": "UP"}, "processes": 2, "expect_workers": 1,
        "master_bind": "127.0.0.1",
    }  # fmt: skip
    assert {field.name for field in fields(SweepPlan)} == set(changed)
    silent = [name for name, value in changed.items() if describe(base) == describe(replace(base, **{name: value}))]
    assert [] == silent


def test_the_load_comes_from_here_or_from_workers_never_from_both():
    """A master waits for its workers and sends nothing itself."""
    assert "load processes: 3 here" in describe(make_plan(processes=3))
    assert "load processes: 2 on other machines, which connect to 10.0.0.5" in describe(
        make_plan(expect_workers=2, master_bind="10.0.0.5")
    )


def test_what_others_wrote_stays_on_its_line():
    """A value that holds a line end or reorders text is printed with escapes."""
    lines = describe(make_plan(api_key_cmd="vault read\nkey", labels={"k": "\u202e"}))

    assert "api key command: vault read\\nkey" in lines
    assert "labels: k=\\u202e" in lines


def test_headers_are_told_by_the_name_of_what_holds_them():
    """A plain value is shown, a secret one never known here."""
    lines = describe(make_plan(headers={"X-Team": "TEAM_TOKEN"}, headers_plain={"X-Kind": "test"}))

    assert "headers: X-Team from environment variable TEAM_TOKEN" in lines
    assert "headers, plain: X-Kind: test" in lines


def test_a_variable_that_may_be_a_key_is_not_repeated(monkeypatch):
    """One in small letters that is not set may be the key itself; one that is set is a name."""
    monkeypatch.delenv("f00dbabe1234", raising=False)
    monkeypatch.setenv("my_token_2", "x")
    lines = describe(
        make_plan(api_key_env="f00dbabe1234", metrics_key_env="my_token_2", headers={"X-A": "f00dbabe1234"})
    )

    assert "api key: from environment variable (not repeated: it looks like a key)" in lines
    assert "metrics key: from environment variable my_token_2" in lines
    assert "headers: X-A from environment variable (not repeated: it looks like a key)" in lines
