"""Put questions to an OpenAI-compatible server, one after another, and keep their answers in a
file.

The client is OpenAI's (`pip install 'oversquashing-tools[hosted]'`): it asks again what a busy
server refused, after as long as that one says. Gemini answers through its OpenAI-compatible
endpoint. The key is read from OPENAI_API_KEY, sent to the endpoint, and written nowhere.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from ostools.ground import InputError, Progress, tell, whole_number
from ostools.ground.arguments import checked_arguments
from ostools.ground.names import is_loopback
from ostools.measure.hosted.answer_file import (
    AnswerRow,
    Hosted,
    hosted_of,
    in_one_line,
    questions_by_id,
    read_rows,
)
from ostools.results import write_atomically
from ostools.tasks import Question

if TYPE_CHECKING:
    import httpx
    import openai
    from openai.types.chat import ChatCompletion

KEY = "OPENAI_API_KEY"
"""The environment variable that holds the key."""
_QUOTED_LENGTH = 300  # characters of what a server says
_HEADERS = {
    "host",
    "connection",
    "accept",
    "accept-encoding",
    "content-length",
    "content-type",
}
"""Headers that are sent beside the key. OPENAI_CUSTOM_HEADERS may name any other, with a secret."""


@checked_arguments(InputError)
def ask_endpoint(
    endpoint: str,
    model: str,
    questions: Iterable[Question],
    path: str | Path,
    *,
    max_tokens: int | None = None,
    timeout: float = 600.0,
    retries: int = 5,
    progress: Progress | None = None,
) -> Hosted:
    """Ask a server at temperature 0, each question as the only turn of a chat.

    The same call goes on where it was cut off. One at a time writes a file.

    Args:
        endpoint: where its OpenAI-compatible API begins, such as http://localhost:8000/v1.
        model: the model's name there.
        path: JSON Lines, written anew with every answer. Questions answered in it are not asked
            again.
        max_tokens: the tokens after which an answer is cut; None: where the server cuts it.
        timeout: for how many seconds one answer is waited for, until its last byte, the pauses
            before asking again included.
        retries: how often a question is asked again that a busy or broken server refused. The
            pauses between grow, or are as long as the server says.
        progress: called as progress(done, total) with the number of questions answered.

    Raises `InputError` for text that is not a URL, a URL with a password, a key that would go over
    an open network, a server that is not there or refuses, and answers in the file of another model
    or with other settings. The answers until then are in the file.
    """
    question_by_id, file = questions_by_id(questions), Path(path)
    key = _key_for(endpoint)
    if not file.parent.is_dir():
        raise InputError(f"--answers {file}: expected a directory that exists, found {file.parent}")
    if max_tokens is not None:
        whole_number("max_tokens", max_tokens, 1)
    how = {"model": model, "endpoint": endpoint, "temperature": 0.0, "max_tokens": max_tokens}
    rows = _stored_rows(file, question_by_id, how)
    missing = question_by_id.keys() - {row.id for row in rows}
    with closing(_client_of(endpoint, key, timeout, retries)) as client:
        for question in (question_by_id[name] for name in question_by_id if name in missing):
            try:
                completion = _completion(client, question, how, key, timeout)
                rows.append(_row_of(completion, question, how, key))
            except InputError as error:
                resume = f"; {file} has what was answered, and the same command goes on"
                raise InputError(f"{error}{resume if rows else ''}") from None
            text = "".join(row.model_dump_json() + "\n" for row in rows)
            write_atomically(file, lambda part, text=text: part.write_text(text, "utf-8"))
            tell(progress, len(rows), len(question_by_id))
    return hosted_of(file, rows, question_by_id, model)


def _stored_rows(
    file: Path, question_by_id: Mapping[str, Question], how: Mapping[str, object]
) -> list[AnswerRow]:
    """Return the answers in the file. Raises `InputError` for answers that were made otherwise."""
    rows = read_rows(file, question_by_id) if file.exists() else []
    for row in rows:
        for name, value in how.items():
            if getattr(row, name) != value:
                raise InputError(
                    f"{file}: expected answers with {name} {value!r}, found "
                    f"{getattr(row, name)!r}: name another file"
                )
    return rows


def _key_for(endpoint: str) -> str | None:
    """Return the key in `KEY` that may be sent to the endpoint; None where there is none.

    Raises `InputError` for text that is not a URL, a URL with a password, a key that no header can
    hold, and a key that would go over an open network.
    """
    key = os.environ.get(KEY) or None
    # The HTTP library would show such a key in its error.
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError(
            f"{KEY}: expected a key of letters, digits and signs, found blanks or other characters"
        )
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("--endpoint: expected a URL such as http://localhost:8000/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        # Not shown: what stands there may be a secret.
        raise InputError(
            "--endpoint: expected a URL without a password, query or fragment; the key is read "
            f"from {KEY}"
        )
    if key is not None and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise InputError(
            f"--endpoint {endpoint}: the key in {KEY} would go over the network for all to read: "
            f"use https, or unset {KEY} for a server that wants none"
        )
    return key


def _client_of(endpoint: str, key: str | None, timeout: float, retries: int) -> openai.OpenAI:
    """Return OpenAI's client of the endpoint, which sends the key and no other secret.

    The environment's proxies serve https to other machines only, where they carry what is
    encrypted; of anything else they could read the key and the prompts. A redirect is not followed.
    What openai reads from the environment (OPENAI_ORG_ID, OPENAI_CUSTOM_HEADERS) is left out.
    """
    try:
        import openai
    except ImportError:
        raise InputError(
            "--endpoint: expected the package openai, found none: pip install "
            "'oversquashing-tools[hosted]'"
        ) from None
    parts = urlsplit(endpoint)

    def send_known_headers(request: httpx.Request) -> None:
        for name in set(request.headers) - _HEADERS:
            del request.headers[name]
        request.headers["host"] = request.url.netloc.decode()
        request.headers["user-agent"] = f"OpenAI/Python {openai.__version__}"
        request.headers["authorization"] = f"Bearer {key or 'none'}"  # some servers insist on one

    http = openai.DefaultHttpxClient(
        timeout=timeout,
        trust_env=parts.scheme == "https" and not is_loopback(parts.hostname or ""),
        follow_redirects=False,
        event_hooks={"request": [send_known_headers]},
    )
    return openai.OpenAI(
        api_key=key or "none",
        base_url=endpoint,
        timeout=timeout,
        max_retries=retries,
        http_client=http,
    )


def _completion(
    client: openai.OpenAI,
    question: Question,
    how: Mapping[str, object],
    key: str | None,
    timeout: float,
) -> tuple[ChatCompletion, float]:
    """Ask one question; return what the server says, and the seconds that it took.

    Raises `InputError` where no answer comes in time, and for a refusal.
    """
    start, where = time.perf_counter(), f"--endpoint {how['endpoint']}"
    request: Any = {"model": how["model"], "temperature": 0}
    request["messages"] = [{"role": "user", "content": question.text}]
    if how["max_tokens"] is not None:
        request["max_tokens"] = how["max_tokens"]
    try:
        completion = _in_time(lambda: client.chat.completions.create(**request), timeout)
    except TimeoutError:
        raise InputError(f"{where}: no whole answer in {timeout:g} seconds") from None
    except Exception as error:  # of openai, of the HTTP library below it, or of a body that is odd
        words = " ".join(f"{error} {error.__cause__ or ''}".split())
        # Without the key before it is cut: a part of it would be left.
        words = words.replace(key, f"[{KEY}]") if key else words
        raise InputError(f"{where}: expected an answer, found {words[:_QUOTED_LENGTH]}") from None
    return completion, time.perf_counter() - start


def _row_of(
    timed_completion: tuple[ChatCompletion, float],
    question: Question,
    how: Mapping[str, object],
    key: str | None,
) -> AnswerRow:
    """Return the row of an answer.

    Raises `InputError` for what is no chat completion, for what no table can hold, and for an
    answer that holds the key.
    """
    (completion, seconds), where = timed_completion, f"--endpoint {how['endpoint']}"
    try:
        choice = completion.choices[0]
        reason = choice.finish_reason or "stop"
        row = {
            "id": question.id,
            "seconds": seconds,
            # A model that ends without a word has no content; what a filter withheld is no answer.
            "text": None if reason == "content_filter" else choice.message.content or "",
            "finish_reason": reason,
            "prompt_tokens": completion.usage and completion.usage.prompt_tokens,
            "served": completion.model,
        }
        text = json.dumps({**how, **row})
    except (LookupError, TypeError, AttributeError):
        raise InputError(
            f"{where}: expected a chat completion as OpenAI's API gives it, found something else"
        ) from None
    if key is not None and key in text:
        raise InputError(
            f"{where}: an answer holds the key in {KEY}: it was not stored; the key is not safe "
            "there"
        )
    try:
        # As JSON: what the file could not hold is found now (half of a surrogate pair).
        return AnswerRow.model_validate_json(text)
    except ValidationError as error:
        raise InputError(
            f"{where}: the answer to {question.id!r} was not stored: {in_one_line(error)}"
        ) from None


def _in_time(ask: Callable[[], ChatCompletion], seconds: float) -> ChatCompletion:
    """Return what `ask` returns if it does so in time, else raise `TimeoutError`.

    The HTTP library's timeout counts anew from each byte: a server that drips never meets it.
    """
    response: Future[ChatCompletion] = Future()

    def fetch() -> None:
        try:
            response.set_result(ask())
        except Exception as error:  # raised where it is waited for
            response.set_exception(error)

    # A daemon: nothing waits for a server that still drips when the command ends.
    threading.Thread(target=fetch, name="ostools-endpoint", daemon=True).start()
    return response.result(seconds)
