"""A server is asked every question once, its key stays secret, and a run that was cut off goes on; what
leaves this machine towards it, how long an answer may take, and what it may hold.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import ostools as ost
from ostools import measure, tasks
from ostools.measure.hosted.endpoint import ask_endpoint
from tests.measure.hosted.server import completion, served

MARKER = "sk-marker-0123456789"
PROXIES = (
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
)
ASKED = tasks.questions("count-ones", lengths=[1])
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", MARKER)
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


def questions(*lengths: int) -> list[ost.tasks.Question]:
    return tasks.questions("count-ones", lengths=lengths)


def right(asked: list[ost.tasks.Question]) -> Any:
    """A server that is always right."""
    lines = {one.text: one.line for one in asked}
    return lambda prompt: (200, completion(lines[prompt]))


def test_every_question_is_asked_once_at_temperature_0_and_its_answer_kept(tmp_path: Path) -> None:
    asked, file = questions(1, 2, 3), tmp_path / "a.jsonl"
    with served(right(asked)) as (url, heard):
        told: list[tuple[int, int]] = []
        found = ask_endpoint(
            url, "m", asked, file, max_tokens=9, progress=lambda *at: told.append(at)
        )
        assert [one["messages"] for one in heard] == [
            [{"role": "user", "content": one.text}] for one in asked
        ]
        assert {
            (one["temperature"], one["max_tokens"], one["model"], one["path"]) for one in heard
        } == {(0, 9, "m", "/v1/chat/completions")}
        assert told == [(1, 3), (2, 3), (3, 3)]
        again = ask_endpoint(url, "m", asked, file, max_tokens=9)
        assert len(heard) == 3
    table: Any = measure.hosted_evaluation(found).frame
    assert table["correct"].all()
    assert list(table["tokens"]) == [7, 7, 7]
    assert again.answer_by_id == found.answer_by_id
    parameters = measure.hosted_evaluation(again).provenance.parameters
    assert (parameters["temperature"], parameters["endpoint"], parameters["served"]) == (
        0.0,
        url,
        ["served-1"],
    )


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    asked, file = questions(1, 2, 3), tmp_path / "a.jsonl"
    broken = {asked[1].text}

    def reply(prompt: str) -> tuple[int, Any]:
        refusal = 400, {"error": {"message": "too\nlong"}}
        return refusal if prompt in broken else right(asked)(prompt)

    with served(reply) as (url, heard):
        with pytest.raises(ost.InputError, match=r"too long.*the same command goes on"):
            ask_endpoint(url, "m", asked, file)
        assert len(file.read_text().splitlines()) == 1
        broken.clear()
        kept = file.read_text()
        found = ask_endpoint(url, "m", asked, file)
        assert [one["messages"][0]["content"] for one in heard] == [
            asked[place].text for place in (0, 1, 1, 2)
        ]
    assert file.read_text().startswith(kept)
    table: Any = measure.hosted_evaluation(found).frame
    assert table["correct"].all()


def test_a_file_holds_the_answers_so_far_in_whole_lines_at_every_question(tmp_path: Path) -> None:
    """So that a kill at any time leaves answers that are read."""
    asked, file, counts = questions(1, 2, 3), tmp_path / "a.jsonl", []

    def reply(prompt: str) -> tuple[int, Any]:
        counts.append(len(measure.read_answers(file, asked).answer_by_id) if file.exists() else 0)
        return right(asked)(prompt)

    with served(reply) as (url, _):
        ask_endpoint(url, "m", asked, file)
    assert counts == [0, 1, 2]


def test_answers_of_another_model_or_made_otherwise_are_not_mixed_in(tmp_path: Path) -> None:
    asked, file = questions(1, 2), tmp_path / "a.jsonl"
    with served(right(asked)) as (url, heard):
        ask_endpoint(url, "m", asked[:1], file)
        for model, limit, words in (("other", None, "model 'other'"), ("m", 5, "max_tokens 5")):
            with pytest.raises(ost.InputError, match=words):
                ask_endpoint(url, model, asked[:1], file, max_tokens=limit)
        with pytest.raises(ost.InputError, match="not among the 1 questions"):
            ask_endpoint(url, "m", asked[1:], file)
        assert len(heard) == 1


def test_what_a_filter_withheld_is_no_answer_and_is_not_asked_for_again(tmp_path: Path) -> None:
    asked, file = questions(1, 2), tmp_path / "a.jsonl"

    def reply(prompt: str) -> tuple[int, Any]:
        return 200, completion("1") if prompt == asked[1].text else completion(
            None, "content_filter"
        )

    with served(reply) as (url, heard):
        for _ in range(2):
            found = ask_endpoint(url, "m", asked, file)
        assert len(heard) == 2
    assert list(measure.hosted_evaluation(found).frame["ended"]) == ["unanswered", "stop"]


@pytest.mark.parametrize(
    ("status", "sent", "words"),
    [
        (401, {"error": {"message": f"bad key {MARKER}"}}, r"bad key \[OPENAI_API_KEY\]"),
        (400, {"error": {"message": f"why {MARKER}"}}, r"why \[OPENAI_API_KEY\]"),
        (200, b"<html>hello</html>", "expected a chat completion"),
        (200, completion("x", "odd"), "finish_reason: input should be"),
        (200, completion(f"your key is {MARKER}"), "an answer holds the key"),
    ],
)
def test_the_key_is_sent_and_never_shown_or_kept(
    tmp_path: Path, status: int, sent: Any, words: str
) -> None:
    with served(lambda _: (status, sent)) as (url, heard):
        with pytest.raises(ost.InputError, match=words) as refused:
            ask_endpoint(url, "m", questions(1), tmp_path / "a.jsonl", retries=0)
        assert heard[0]["authorization"] == f"Bearer {MARKER}"
    assert MARKER not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not any(MARKER in path.read_text() for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/v1", "expected a URL"),
        ("http://[::1", "expected a URL"),
        (f"https://user:{MARKER}@host/v1", "without a password"),
        (f"https://host/v1?key={MARKER}", "without a password"),
        ("http://example.org/v1", "use https"),
    ],
)
def test_urls_that_are_none_or_would_give_a_key_away(tmp_path: Path, url: str, words: str) -> None:
    with pytest.raises(ost.InputError, match=words) as refused:
        ask_endpoint(url, "m", questions(1), tmp_path / "a.jsonl")
    assert MARKER not in str(refused.value)
    assert not list(tmp_path.iterdir())


@contextmanager
def raw_server(answer: Callable[[socket.socket, bytes], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server of bytes: its address, and the requests as they came. `answer` writes to the socket
    what it likes.
    """
    heard: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = connection.recv(2**20)
            heard.append(request)
            answer(connection, request)

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=[listening.accept()[0]], daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def send_nothing(connection: socket.socket, request: bytes) -> None:
    connection.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")


def test_a_proxy_of_the_environment_sees_nothing_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        raw_server(send_nothing) as (proxy, seen),
        served(lambda _: (200, completion("1"))) as (url, heard),
    ):
        for name in PROXIES[:6]:
            monkeypatch.setenv(name, proxy)
        ask_endpoint(url.replace("127.0.0.1", "localhost"), "m", ASKED, tmp_path / "a.jsonl")
        assert seen == []
    assert [one["authorization"] for one in heard] == [f"Bearer {MARKER}"]


def test_a_proxy_sees_of_https_the_name_of_the_host_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raw_server(lambda connection, _: connection.sendall(b"HTTP/1.1 502 no\r\n\r\n")) as (
        proxy,
        seen,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        with pytest.raises(ost.InputError, match="expected a chat completion"):
            ask_endpoint("https://example.org/v1", "m", ASKED, tmp_path / "a.jsonl", retries=0)
    assert seen
    assert all(
        one.startswith(b"CONNECT example.org:443 ") and MARKER.encode() not in one for one in seen
    )


def test_what_openai_reads_from_the_environment_goes_to_openai_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-secret")
    named = (
        "X-Team: team-secret",
        "Authorization: Bearer other-secret",
        "Host: secret",
        "User-Agent: secret",
    )
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "\n".join(named))
    with (
        raw_server(send_nothing) as (url, heard),
        pytest.raises(ost.InputError, match="expected a chat completion"),
    ):
        ask_endpoint(f"{url}/v1", "m", ASKED, tmp_path / "a.jsonl")
    assert all(b"secret" not in request for request in heard)
    assert all(
        f"authorization: Bearer {MARKER}".lower() in request.decode().lower() for request in heard
    )


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with raw_server(send_nothing) as (other, seen):
        moved = f"HTTP/1.1 307 Moved\r\nContent-Length: 0\r\nLocation: {other}/v1\r\n\r\n".encode()
        refused = pytest.raises(ost.InputError, match="307")
        with raw_server(lambda connection, _: connection.sendall(moved)) as (url, _), refused:
            ask_endpoint(f"{url}/v1", "m", ASKED, tmp_path / "a.jsonl")
        assert seen == []


def drip(connection: socket.socket, request: bytes) -> None:
    """Send an answer without an end, a byte at a time."""
    connection.sendall(HEAD + b"Content-Length: 1000000000000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def test_an_answer_without_an_end_is_cut(tmp_path: Path) -> None:
    with raw_server(drip) as (url, _):
        start = time.monotonic()
        with pytest.raises(ost.InputError, match=r"no whole answer in 0\.5 seconds"):
            ask_endpoint(f"{url}/v1", "m", ASKED, tmp_path / "a.jsonl", timeout=0.5)
        assert time.monotonic() - start < 6


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (completion("1") | {"choices": [{"message": "text"}]}, "expected a chat completion"),
        (
            completion("half \ud83d"),
            "was not stored: the line: invalid JSON: unexpected end of hex escape",
        ),
        (
            completion("1", tokens=-1),
            "was not stored: prompt_tokens: input should be greater than or equal to 0",
        ),
        (
            completion("1") | {"choices": [{"message": {"content": ["1"]}}]},
            "was not stored: text: input should be a valid string",
        ),
        (
            completion("1", reason=f"because {MARKER}"),
            "an answer holds the key",
        ),
    ],
)
def test_what_no_table_can_hold_is_refused_and_not_stored(
    tmp_path: Path, sent: Any, words: str
) -> None:
    file = tmp_path / "a.jsonl"
    with (
        served(lambda _: (200, sent)) as (url, _),
        pytest.raises(ost.InputError, match=words) as refused,
    ):
        ask_endpoint(url, "m", ASKED, file)
    assert not file.exists()
    assert MARKER not in str(refused.value)
    str(refused.value).encode()
    with served(lambda _: (200, completion("1"))) as (url, _):
        assert ask_endpoint(url, "m", ASKED, file).answer_by_id


@pytest.mark.parametrize("key", ["sk\none", "skä"])
def test_a_key_that_no_header_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr("os.environ", {"OPENAI_API_KEY": key})
    with pytest.raises(ost.InputError, match="OPENAI_API_KEY: expected a key") as refused:
        ask_endpoint("http://127.0.0.1:9/v1", "m", ASKED, tmp_path / "a.jsonl")
    assert key not in str(refused.value)
