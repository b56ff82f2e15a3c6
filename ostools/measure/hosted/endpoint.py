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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout
from pydantic import ValidationError

from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError, in_words
from ostools.ground.names import is_loopback
from ostools.ground.progress import Progress, tell
from ostools.ground.whole_numbers import whole_number
from ostools.measure.hosted.answer_file import (
    AnswerRow,
    Hosted,
    hosted_of,
    in_one_line,
    questions_by_id,
    read_rows,
)
from ostools.results import write_atomically
from ostools.tasks.questions import Question

if TYPE_CHECKING:
    import openai

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
    "x-stainless-raw-response",  # where openai keeps that the raw response was asked for
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

    The same call goes on where it was cut off.

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
    an open network, a server that is not there or refuses, answers in the file of another model or
    with other settings, and a second run on the file. The answers until then are in the file.
    """
    question_by_id, file = questions_by_id(questions), Path(path)
    key = key_of(endpoint)
    if max_tokens is not None:
        whole_number("max_tokens", max_tokens, 1)
    how = {"model": model, "endpoint": endpoint, "temperature": 0.0, "max_tokens": max_tokens}
    with _locked(file):
        rows = read_rows(file, question_by_id) if file.exists() else []
        for row in rows:
            for name, value in how.items():
                if getattr(row, name) != value:
                    raise InputError(
                        f"{file}: expected answers with {name} {value!r}, found "
                        f"{getattr(row, name)!r}: name another file"
                    )
        answered_ids = {row.id for row in rows}
        missing = [
            question for name, question in question_by_id.items() if name not in answered_ids
        ]
        if missing:
            with _client_of(endpoint, key, timeout, retries) as client:
                server = _Server(client, endpoint, key, file, timeout)
                server.require_somebody()
                for question in missing:
                    rows.append(server.answer(question, how))
                    text = "".join(row.model_dump_json() + "\n" for row in rows)
                    write_atomically(file, lambda part, text=text: part.write_text(text, "utf-8"))
                    tell(progress, len(rows), len(question_by_id))
        return hosted_of(file, rows, question_by_id, model)


def key_of(endpoint: str) -> str | None:
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
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    is_plain = endpoint.isascii() and endpoint.isprintable() and " " not in endpoint
    if not is_plain or parts.scheme not in ("http", "https") or not host:
        raise InputError(
            "--endpoint: expected a URL such as http://localhost:8000/v1, found something else"
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        # Not shown: what stands there may be a secret.
        raise InputError(
            f"--endpoint: expected a URL without a password, query or fragment; the key is read from {KEY}"
        )
    if key is not None and parts.scheme == "http" and not is_loopback(host):
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
            "--endpoint: expected the package openai, found none: pip install 'oversquashing-tools[hosted]'"
        ) from None
    parts = urlsplit(endpoint)

    def send_known_headers(request: Any) -> None:
        for name in set(request.headers) - _HEADERS:
            del request.headers[name]
        request.headers["host"] = request.url.netloc.decode()
        request.headers["user-agent"] = f"OpenAI/Python {openai.__version__}"
        request.headers["authorization"] = f"Bearer {key or 'none'}"  # some servers insist on one

    try:
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
    except Exception as error:  # of the HTTP library: no address, certificates that cannot be read
        raise InputError(f"--endpoint {endpoint}: cannot be asked: {in_words(error)}") from None


@dataclass(frozen=True)
class _Server:
    """Where questions go, and what its refusals mean."""

    client: openai.OpenAI
    endpoint: str
    key: str | None
    file: Path
    timeout: float

    def require_somebody(self) -> None:
        """Raise `InputError` at once where nobody listens; what is answered does not matter."""
        client = self.client.with_options(max_retries=0)
        self._answered(client.models.with_raw_response.list, min(self.timeout, 20.0), refused=None)

    def answer(self, question: Question, how: dict[str, Any]) -> AnswerRow:
        """Ask one question and return the row of its answer."""
        start = time.perf_counter()
        limit = {} if how["max_tokens"] is None else {"max_tokens": how["max_tokens"]}
        message: Any = {"role": "user", "content": question.text}

        def ask() -> Any:
            return self.client.chat.completions.with_raw_response.create(
                model=how["model"], messages=[message], temperature=0, **limit
            )

        body = self._answered(ask, self.timeout, how["model"]).content
        row = {"id": question.id, "seconds": time.perf_counter() - start, **self._parsed(body)}
        try:
            # As JSON: what the file could not hold is found now (half of a surrogate pair).
            return AnswerRow.model_validate_json(json.dumps(how | row))
        except ValidationError as error:
            raise InputError(
                f"{self.endpoint}: the answer to {question.id!r} was not stored: {in_one_line(error)}"
            ) from None

    def _parsed(self, body: bytes) -> dict[str, Any]:
        """Return text, finish_reason, prompt_tokens and served of a chat completion.

        Raises `InputError` for a body that is none, and for one that holds the key.
        """
        try:
            completion = json.loads(body)
            choice = completion["choices"][0]
            reason = choice.get("finish_reason") or "stop"
            # A model that ends without a word has no content.
            text = choice["message"].get("content") or ""
            tokens = (completion.get("usage") or {}).get("prompt_tokens")
            served = completion.get("model")
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            raise InputError(
                f"--endpoint {self.endpoint}: expected a chat completion as OpenAI's API gives it, "
                f"found {self._scrubbed(body.decode('utf-8', 'replace'))!r}"
            ) from None
        if self.key is not None and self.key in f"{text} {served}":
            raise InputError(
                f"{self.endpoint}: an answer holds the key in {KEY}: it was not stored; the key is not safe there"
            )
        withheld = reason == "content_filter"
        return {
            "text": None if withheld else text,
            "finish_reason": reason,
            "prompt_tokens": tokens,
            "served": served,
        }

    def _answered(self, ask: Callable[[], Any], seconds: float, refused: str | None) -> Any:
        """Return the response of `ask` if it comes in time, else raise `InputError`.

        The HTTP library's timeout counts anew from each byte: a server that drips never meets it.
        refused: the model that a refusal speaks of; None where a refusal is an answer.
        """
        import openai

        response: Future[Any] = Future()

        def fetch() -> None:
            try:
                response.set_result(ask())
            except BaseException as error:  # raised where it is waited for
                response.set_exception(error)

        # A daemon: nothing waits for a server that still drips when the command ends.
        threading.Thread(target=fetch, name="ostools-endpoint", daemon=True).start()
        where = f"--endpoint {self.endpoint}"
        try:
            return response.result(seconds)
        except (TimeoutError, openai.APITimeoutError):
            reason = f"{where}: no whole answer in time"
        except openai.APIConnectionError as error:
            cause = self._scrubbed(str(error.__cause__ or error))
            reason = f"{where}: nobody answers there ({cause}): start the server, or mend the URL"
        except openai.OpenAIError as error:
            if refused is None:
                return None
            reason = f"{where} {self._refusal(error, refused)}"
        resume = f"; what was answered is in {self.file}, and the same command goes on"
        raise InputError(reason + (resume if self.file.is_file() else ""))

    def _refusal(self, error: openai.OpenAIError, model: str) -> str:
        """Return what the server's refusal means, in its words and ours."""
        code, words = getattr(error, "status_code", None), self._scrubbed(str(error))
        if code in (401, 403):
            demand = f"the key in {KEY}" if self.key else f"to answer without a key: set {KEY}"
            return f"refuses {demand} ({words})"
        if code == 404:
            return f"has no model {model!r}, or no OpenAI-compatible API (its URL often ends in /v1): {words}"
        if code is not None and 300 <= code < 400:
            response: Any = getattr(error, "response", None)
            address = self._scrubbed(response.headers.get("location", "an unknown address"))
            return f"sends the question on to {address}: give that URL, if you trust it"
        return f"refuses: {words}"

    def _scrubbed(self, text: str) -> str:
        """Return one line of what the server says, without the key, taken out before it is cut."""
        clean = text if self.key is None else text.replace(self.key, f"[{KEY}]")
        line = " ".join(clean.split())
        return line if len(line) <= _QUOTED_LENGTH else line[:_QUOTED_LENGTH] + " ..."


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keep the file to one run at a time."""
    if not file.parent.is_dir():
        raise InputError(
            f"--answers {file}: the directory {file.parent} does not exist; make it first"
        )
    lock = FileLock(file.with_name(f".{file.name}.lock"))
    try:
        acquired = lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"--answers {file}: another run is asking for these answers; wait for it, or name another file"
        ) from None
    except OSError as error:
        raise InputError(
            f"--answers {file}: cannot be written: {error.strerror or error}"
        ) from None
    with acquired:
        yield
