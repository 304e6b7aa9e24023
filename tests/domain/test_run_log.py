"""The lines of a run: bounded, readable, without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from django_jobs.domain.run_log import LARGEST_RECORD, MASK, RunLog, readable, secrets_in
from tests.growth import growth

WORDS = ("password", "token", "authorization", "api_key", "cookie")
PEM = "-----BEGIN KEY-----\n" + 'abc+/ \\ü"\n' * 300 + "-----END KEY-----\n"


def log(*messages: str, lines: int = 10, size: int = 10_000, secrets: tuple[str, ...] = ()) -> str:
    made = RunLog(lines=lines, size=size, words=WORDS, secrets=secrets)
    for message in messages:
        made.add(0.0, "INFO", "shop", message)
    return made.text().replace("1970-01-01T00:00:00.000Z INFO shop: ", "")


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("password=abc next", f"password={MASK} next"),
        ('{"user_password": "a \\" b", "n": 1}', f'{{"user_password": {MASK}, "n": 1}}'),
        ("Authorization: Bearer abc.def-1", f"Authorization: {MASK}"),
        ("API_KEY_ID = 'a b'; x", f"API_KEY_ID = {MASK}; x"),
        ("token='never closed", f"token={MASK}"),
        ("token='never closed\\", f"token={MASK}"),
        (json.dumps({"password": PEM, "n": 1}), f'{{"password": {MASK}, "n": 1}}'),
        ("{'password': b'bytesecret x y', 'n': 1}", f"{{'password': {MASK}, 'n': 1}}"),
        ("(password=bytearray(b'a) b'), n=1)", f"(password={MASK}, n=1)"),
        ('{"tokens": ["first1", "sec]ond2"], "n": 1}', f'{{"tokens": {MASK}, "n": 1}}'),
        ('{"tokens": {"a": ["x"], "b": "y"}, "n": 1}', f'{{"tokens": {MASK}, "n": 1}}'),
        ('{"tokens": ["first1", "cut', f'{{"tokens": {MASK}'),
        ("GET /?token=abc[1]x&n=1", f"GET /?token={MASK}&n=1"),
        ("Cookie: csrftoken=abc; sessionid=X\nHost: y", f"Cookie: {MASK}\n    Host: y"),
        ('Set-Cookie: "a"; b=c', f"Set-Cookie: {MASK}"),
        ('Authorization: Digest u="a", response="b"', f"Authorization: {MASK}"),
        ("{'Cookie': 'a=b; c=d', 'n': 1}", f"{{'Cookie': {MASK}, 'n': 1}}"),
        (r'"{\"password\": \"a \\\" b\", \"n\": 1}"', rf'"{{\"password\": {MASK}, \"n\": 1}}"'),
        (r"'{\'token\': \'a b\', \'n\': 1}'", rf"'{{\'token\': {MASK}, \'n\': 1}}'"),
        (r"{\\\"Cookie\\\": \\\"a=b; c", rf"{{\\\"Cookie\\\": {MASK}"),
        ("password=, n=1", "password=, n=1"),
        ("the password is wrong", "the password is wrong"),
        ("x.TokenError: no account", "x.TokenError: no account"),
        ("AuthorizationException: a, token=b", f"AuthorizationException: a, token={MASK}"),
        ("token_error: b", f"token_error: {MASK}"),
        ("TokenError=b", f"TokenError={MASK}"),
    ],
)
def test_values_under_secret_names_are_masked(message: str, kept: str) -> None:
    assert log(message) == kept


def test_secret_values_of_the_payload_are_masked_wherever_they_stand() -> None:
    payload = {"user": {"Password": ["open sesame", 4711]}, "token": None, "n": "visible"}
    secrets = secrets_in(payload, WORDS)
    assert secrets == {"open sesame", "4711"}
    shown = log("got open sesame and 4711 and visible", secrets=tuple(secrets))
    assert shown == f"got {MASK} and {MASK} and visible"


@pytest.mark.parametrize("logged", [str, json.dumps, repr, partial(json.dumps, ensure_ascii=False)])
def test_a_secret_of_the_payload_is_masked_in_all_its_forms(logged: Callable[[str], str]) -> None:
    shown = log(f"key is {logged(PEM)} here", secrets=(PEM,))
    assert shown in (f"key is {MASK} here", f'key is "{MASK}" here', f"key is '{MASK}' here")


def test_short_secrets_are_not_masked_in_the_midst_of_words() -> None:
    assert log("a cab", secrets=("a",)) == "a cab"


def test_no_message_looks_like_another_record() -> None:
    assert readable("one\ntwo\r\n\x1b[31m\u202e") == "one\n    two\\r\n    \\x1b[31m\\u202e"


def test_bytes_bound_the_first_and_the_last_half() -> None:
    messages = [f"{number} " + "x" * 100 for number in range(100)]
    text = log(*messages, lines=1000, size=2_000)
    assert len(text) < 2_000
    assert text.startswith("0 x")
    assert text.splitlines()[-1].startswith("99 x")
    assert "lines are left out)" in text


@pytest.mark.parametrize(
    "text",
    [
        'password="',
        "password",
        "x",
        "a password='b\\",
        "password=[",
        "password=b",
        "cookie: ",
        "password=[b'",
        "password=()",
        "password=(]x",
        "[password='",
        "\\",
        'password\\"',
        'password:\\"',
        "a\\",
        "tokentoken",
    ],
)
def test_no_text_takes_long(text: str) -> None:
    def log_so_much(length: int) -> None:
        for start in ("", "password=", "password=[", 'password="', "password=b'"):
            log((start + text * length)[:length])

    small, large = LARGEST_RECORD // 8, LARGEST_RECORD
    # 8; of the square of the length, 64.
    assert growth(lambda: log_so_much(small), lambda: log_so_much(large)) < 24


def test_a_huge_record_is_cut() -> None:
    assert len(log("x" * 10_000_000)) < 5_000
