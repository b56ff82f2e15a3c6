"""Put questions to an OpenAI-compatible server, one after another, and keep their answers in a
file.

The client is OpenAI's (`pip install 'oversquashing-tools[hosted]'`): it asks again what a busy
server refused, after as long as that one says. Gemini answers through its OpenAI-compatible
endpoint. The key is read from OPENAI_API_KEY, sent to the endpoint, and written nowhere.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.ground import Count, InputError, Progress, checked_arguments, tell
from ostools.measure.hosted.answer_file import (
    AnswerRow,
    Hosted,
    hosted_of,
    questions_by_id,
    read_rows,
    require_one_way,
    row_of,
)
from ostools.results import write_atomically
from ostools.tasks import Question

if TYPE_CHECKING:
    import httpx
    import openai
    from openai.types.chat import ChatCompletion

KEY = "OPENAI_API_KEY"
"""The environment variable that holds the key."""
_HEADERS = {
    "host",
    "connection",
    "accept",
    "accept-encoding",
    "content-length",
    "content-type",
}
"""Headers that are sent beside the key. OPENAI_CUSTOM_HEADERS may name any other, with a secret."""
_URL = re.compile(r"(https?)://(\[[\da-fA-F:.]+\]|[^\s/?#@:\[\]]+)(?::\d+)?(?:/[^\s?#]*)?")
"""Scheme and host of a URL without a password, a query or a fragment, which may be secrets."""


@checked_arguments(InputError)
def ask_endpoint(
    endpoint: str,
    model: str,
    questions: Iterable[Question],
    path: str | Path,
    *,
    max_tokens: Count | None = None,
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
    client, key = _client_of(endpoint, timeout, retries)
    if not file.parent.is_dir():
        raise InputError(f"--answers {file}: expected a directory that exists, found {file.parent}")
    how = {"model": model, "endpoint": endpoint, "temperature": 0.0, "max_tokens": max_tokens}
    rows = read_rows(file, question_by_id) if file.exists() else []
    require_one_way(file, [AnswerRow.model_validate({**how, "id": "", "text": None}), *rows])
    answered_ids = {row.id for row in rows}
    with client:
        for question in question_by_id.values():
            if question.id in answered_ids:
                continue
            try:
                rows.append(_answer(client, question, how, key, timeout))
            except InputError as error:
                resume = f"; {file} has what was answered, and the same command goes on"
                raise InputError(f"{error}{resume if rows else ''}") from None
            text = "".join(row.model_dump_json() + "\n" for row in rows)
            write_atomically(file, lambda part, text=text: part.write_text(text, "utf-8"))
            tell(progress, len(rows), len(question_by_id))
    return hosted_of(file, rows, question_by_id, model)


def _client_of(endpoint: str, timeout: float, retries: int) -> tuple[openai.OpenAI, str | None]:
    """Return OpenAI's client of the endpoint, which sends the key in `KEY` and no other secret; and
    the key, None where there is none.

    The environment's proxies serve https to other machines only, where they carry what is
    encrypted; of anything else they could read the key and the prompts. A redirect is not followed.
    What openai reads from the environment (OPENAI_ORG_ID, OPENAI_CUSTOM_HEADERS) is left out.

    Raises `InputError` for text that is not a URL, a URL with a password, a key that no header can
    hold, and a key that would go over an open network.
    """
    try:
        import openai
    except ImportError:
        raise InputError(
            "--endpoint: expected the package openai, found none: pip install "
            "'oversquashing-tools[hosted]'"
        ) from None
    key = os.environ.get(KEY) or None
    # The HTTP library would show such a key in its error.
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError(
            f"{KEY}: expected a key of letters, digits and signs, found blanks or other characters"
        )
    if (url := _URL.fullmatch(endpoint)) is None:  # not shown: a secret may stand in it
        raise InputError(
            "--endpoint: expected a URL such as http://localhost:8000/v1, without a password, "
            f"query or fragment; the key is read from {KEY}"
        )
    is_encrypted, is_here = url[1] == "https", _is_loopback(url[2].strip("[]"))
    if key is not None and not is_encrypted and not is_here:
        raise InputError(
            f"--endpoint {endpoint}: the key in {KEY} would go over the network for all to read: "
            f"use https, or unset {KEY} for a server that wants none"
        )
    bearer = key or "none"  # some servers insist on one
    headers = {
        "user-agent": f"OpenAI/Python {openai.__version__}",
        "authorization": f"Bearer {bearer}",
    }

    def send_known_headers(request: httpx.Request) -> None:
        for name in set(request.headers) - _HEADERS:
            del request.headers[name]
        request.headers.update(headers | {"host": request.url.netloc.decode()})

    http = openai.DefaultHttpxClient(
        timeout=timeout,
        trust_env=is_encrypted and not is_here,
        follow_redirects=False,
        event_hooks={"request": [send_known_headers]},
    )
    client = openai.OpenAI(
        api_key=bearer, base_url=endpoint, timeout=timeout, max_retries=retries, http_client=http
    )
    return client, key


def _answer(
    client: openai.OpenAI,
    question: Question,
    how: Mapping[str, object],
    key: str | None,
    timeout: float,
) -> AnswerRow:
    """Ask one question; return its row.

    Raises `InputError` where no whole answer comes in time, for a refusal, for what is no chat
    completion, for what no table can hold, and for an answer that holds the key.
    """
    start, where = time.perf_counter(), f"--endpoint {how['endpoint']}"
    messages = [{"role": "user", "content": question.text}]
    request: Any = {"model": how["model"], "temperature": 0, "messages": messages}
    if how["max_tokens"] is not None:
        request["max_tokens"] = how["max_tokens"]
    try:
        completion = _completion(client, request, timeout).model_dump(warnings=False)
        choice, usage = completion["choices"][0], completion.get("usage") or {}
        # A model that ends without a word has no content.
        reason, text = choice.get("finish_reason") or "stop", choice["message"].get("content") or ""
    except TimeoutError:
        raise InputError(f"{where}: no whole answer in {timeout:g} seconds") from None
    except Exception as error:  # of openai, of the HTTP library below it, or of a body that is odd
        words = " ".join(f"{error} {error.__cause__ or ''}".split())
        # Without the key before it is cut: a part of it would be left.
        words = words.replace(key, f"[{KEY}]") if key else words
        raise InputError(f"{where}: expected a chat completion, found {words[:300]}") from None
    row = {
        **how,
        "id": question.id,
        "seconds": time.perf_counter() - start,
        "text": None if reason == "content_filter" else text,
        "finish_reason": reason,
        "prompt_tokens": usage.get("prompt_tokens"),
        "served": completion.get("model"),
    }
    line = json.dumps(row)
    if key is not None and key in line:
        raise InputError(
            f"{where}: an answer holds the key in {KEY}: it was not stored; the key is not safe "
            "there"
        )
    # As JSON: what the file could not hold is found now (half of a surrogate pair).
    return row_of(line, f"{where}: the answer to {question.id!r} was not stored")


def _completion(client: openai.OpenAI, request: Any, timeout: float) -> ChatCompletion:
    """What the server answers; `TimeoutError` where its last byte does not come in time."""
    response: Future[ChatCompletion] = Future()

    def fetch() -> None:
        try:
            response.set_result(client.chat.completions.create(**request))
        except Exception as error:  # raised where it is waited for
            response.set_exception(error)

    # A daemon, as the HTTP library's timeout counts anew from each byte: nothing waits for a server
    # that still drips.
    threading.Thread(target=fetch, name="ostools-endpoint", daemon=True).start()
    return response.result(timeout)


def _is_loopback(host: str) -> bool:
    """Whether the name is of this machine, which nobody else can listen to or reach."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
