"""Secrets are left out of what is shown, and nothing else is."""

from __future__ import annotations

import pytest

from embodied.lib import hidden


@pytest.mark.parametrize(
    "key",
    ["reward.api_key", "x.OPENAI_API_KEY", "token", "hf_token", "db.password", "http.headers.X-Anything",
     "client-secret", "Authorization", "+env.train.headers.accept"],
)  # fmt: skip
def test_secret_keys(key: str) -> None:
    assert hidden.is_secret(key)


@pytest.mark.parametrize(
    "key", ["max_new_tokens", "eos_token", "model.token_level", "runner.seed", "api_key_file", "header", "secretary"]
)
def test_other_keys(key: str) -> None:
    assert not hidden.is_secret(key)


def test_values_within_values() -> None:
    given = {"url": "https://me:pw@host/x", "headers": {"X": "abc", "Y": ""}, "list": [{"password": "p"}, "plain", 3]}
    assert hidden.in_value("reward", given) == {
        "url": "https://(hidden)@host/x", "headers": {"X": "(hidden)", "Y": ""},
        "list": [{"password": "(hidden)"}, "plain", 3],
    }  # fmt: skip
    assert hidden.in_value("api_key", None) is None


def test_commands() -> None:
    plain = "python -m embodied.train env=fake 'a=b c' max_new_tokens=3 mail=me@host"
    assert hidden.in_command(plain) == plain
    found = hidden.in_command(
        "python -m embodied.train +reward.api_key=abc 'reward.headers={X: abc}' proxy=http://me:pw@host "
        "'reward.params={api_key: abc, n: 3}'"
    )
    assert "abc" not in found
    assert "pw" not in found
    assert "n: 3" in found
    assert hidden.in_command("echo 'open http://me:pw@host") == "echo 'open http://(hidden)@host"
