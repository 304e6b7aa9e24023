"""The receiver's scripts, and the job that delivers to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.error import HTTPError, URLError

import pytest

from testproject.demo import jobs
from testproject.demo.receiver import RETRY_AFTER, Receiver, Script
from tests.worker.processes import until


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is short for an answer on a machine that others use."""
    monkeypatch.setattr(jobs, "ANSWER_SECONDS", 60.0)


def deliver(receiver: Receiver, script: Script, delivery_id: str = "one") -> int:
    url = receiver.url(script, delivery_id)
    return jobs.deliver_webhook(delivery_id=delivery_id, url=url, body={"event": "test"})


def until_asked(receiver: Receiver, delivery_id: str) -> None:
    until(lambda: receiver.requests[delivery_id], what="it is asked")


def test_a_delivery_that_is_accepted_arrives_at_the_first_request(receiver: Receiver) -> None:
    assert deliver(receiver, Script.ACCEPTS) == 200
    assert (receiver.requests["one"], receiver.accepted["one"]) == (1, 1)


def test_a_busy_receiver_says_when_to_come_again(receiver: Receiver) -> None:
    with pytest.raises(HTTPError) as caught:
        deliver(receiver, Script.BUSY)
    assert caught.value.code == 429
    assert caught.value.headers["Retry-After"] == str(RETRY_AFTER)
    assert deliver(receiver, Script.BUSY) == 200


def test_a_broken_receiver_answers_500_once(receiver: Receiver) -> None:
    with pytest.raises(HTTPError, match="500"):
        deliver(receiver, Script.BROKEN)
    assert deliver(receiver, Script.BROKEN) == 200


def test_a_slow_receiver_is_given_up_and_answers_the_second_request(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(jobs, "ANSWER_SECONDS", 0.2)
        with pytest.raises(TimeoutError):
            deliver(receiver, Script.SLOW)
    # It was perhaps given up before it was read, and the next one is not to be the first.
    until_asked(receiver, "one")
    assert receiver.accepted["one"] == 0
    assert deliver(receiver, Script.SLOW) == 200


def test_deliveries_are_distinguished(receiver: Receiver) -> None:
    deliver(receiver, Script.ACCEPTS, "one")
    deliver(receiver, Script.ACCEPTS, "one")
    deliver(receiver, Script.ACCEPTS, "two")
    assert receiver.accepted == {"one": 2, "two": 1}


def test_proxy_variables_of_the_environment_are_ignored(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert deliver(receiver, Script.ACCEPTS) == 200


def test_a_path_without_a_script_is_not_found(receiver: Receiver) -> None:
    url = receiver.url(Script.ACCEPTS, "one").replace("accepts", "elsewhere")
    with pytest.raises(HTTPError, match="404"):
        jobs.deliver_webhook(delivery_id="one", url=url, body={})
    assert not receiver.requests


def test_it_listens_only_on_the_loopback_and_stops_at_the_end() -> None:
    with Receiver() as receiver:
        address = receiver._server.server_address
        assert address[0] == "127.0.0.1"
        url = receiver.url(Script.ACCEPTS, "one")
    with pytest.raises(URLError):
        jobs.deliver_webhook(delivery_id="one", url=url, body={})
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
