"""Questions put to an OpenAI-compatible server, one after another, and their answers kept in a file as they come.

The client is OpenAI's (`pip install 'oversquashing-tools[hosted]'`): it asks again what a busy server refused, after as long as
that one says. The key is read from OPENAI_API_KEY, sent to the endpoint, and written nowhere.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from ostools.ground.errors import InputError
from ostools.ground.names import is_loopback
from ostools.ground.progress import Progress, tell
from ostools.ground.whole_numbers import whole_number
from ostools.hooks.errors import checked_arguments
from ostools.measure.hosted.answer_file import SETTINGS, Hosted, check_values, read_answers, rows_of, text_of
from ostools.results import write_atomically
from ostools.tasks.questions import Question, checked_questions

KEY = "OPENAI_API_KEY"
"""The environment variable that holds the key."""
_NO_KEY = "none"  # what a server that wants none is sent: the client insists on one
_FIRST = '{"model": '  # how every row begins that is written here
_QUOTED_LENGTH = 300  # characters of what a server says


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
    """The answers of a server at temperature 0, each as the only turn of a chat. The same call goes on where it was cut off.

    Args:
        endpoint: where its OpenAI-compatible API begins, such as http://localhost:8000/v1.
        model: the model's name there.
        path: JSON Lines, to which every answer is appended, and flushed to disk. Questions answered in it are not asked again.
        max_tokens: the tokens after which an answer is cut; None: where the server cuts it.
        timeout: for how many seconds one answer is waited for, until its last byte. It is not asked for again.
        retries: how often a question is asked again that a busy or broken server refused. The pauses between grow, or are as
            long as the server says.
        progress: called as progress(done, total) with the number of questions answered.

    Raises `InputError` for text that is not a URL, a URL with a password, a key that would go over an open network, a server
    that is not there or refuses, answers in the file of another model or with other settings, and a second run on the file.
    The answers until then are in the file.
    """
    asked_questions, file = checked_questions(questions), Path(path)
    key = key_of(endpoint)
    if max_tokens is not None:
        whole_number("max_tokens", max_tokens, 1)
    how: dict[str, Any] = dict(zip(SETTINGS, (model, endpoint, 0.0, max_tokens), strict=True))
    with _mine(file):
        unanswered = _unanswered(file, asked_questions, how)
        if unanswered:
            options = {} if max_tokens is None else {"max_tokens": max_tokens}
            server = _Server(endpoint, model, options, key, file, timeout, retries)
            with closing(server.client):
                server.require_somebody()
                for count_done, question in enumerate(unanswered, len(asked_questions) - len(unanswered) + 1):
                    _append(file, how | {"id": question.id} | server.answer(question))
                    tell(progress, count_done, len(asked_questions))
        return read_answers(file, asked_questions)


def key_of(endpoint: str) -> str | None:
    """The key in `KEY` that may be sent to the endpoint; None where there is none.

    Raises `InputError` for text that is not a URL, a URL with a password, a key that no header can hold, and a key that would
    go over an open network.
    """
    key = os.environ.get(KEY) or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError(f"{KEY}: expected a key of letters, digits and signs, found blanks or other characters in it")
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    is_plain = endpoint.isascii() and endpoint.isprintable() and " " not in endpoint
    if not is_plain or parts.scheme not in ("http", "https") or not host:
        raise InputError("--endpoint: expected a URL such as http://localhost:8000/v1, found something else")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        # Not shown: what stands there may be a secret.
        raise InputError(
            f"--endpoint: expected a URL without a password, query or fragment; the key is read from {KEY}"
        )
    if key is not None and parts.scheme == "http" and not is_loopback(host):
        raise InputError(
            f"--endpoint {endpoint}: the key in {KEY} would go over the network for all to read: use https, or unset {KEY} "
            "for a server that wants none"
        )
    return key


class _Server:
    """Where questions go, and what its refusals mean."""

    def __init__(
        self,
        endpoint: str,
        model: str,
        options: dict[str, Any],
        key: str | None,
        file: Path,
        timeout: float,
        retries: int,
    ) -> None:
        self.library = _library()
        from ostools.measure.hosted.client import client_of

        self.endpoint, self.model, self.options, self.key, self.file = endpoint, model, options, key, file
        self.first_timeout = min(timeout, 20.0)
        self.client = client_of(endpoint, key or _NO_KEY, timeout, retries)

    def require_somebody(self) -> None:
        """One question without retries, whose answer does not matter: whether anybody listens there."""
        client = self.client.with_options(max_retries=0, timeout=self.first_timeout)
        try:
            client.models.with_raw_response.list()
        except self.library.APIConnectionError as error:
            raise self._refused(error) from None
        except self.library.OpenAIError:
            return
        except InputError as error:
            raise self._odd(str(error)) from None

    def answer(self, question: Question) -> dict[str, Any]:
        """Ask one question; the answer as a JSON Lines row: text, finish_reason, prompt_tokens, served, seconds."""
        start = time.perf_counter()
        message: Any = {"role": "user", "content": question.text}
        try:
            response = self.client.chat.completions.with_raw_response.create(
                model=self.model, messages=[message], temperature=0, **self.options
            )
        except self.library.OpenAIError as error:
            raise self._refused(error) from None
        except InputError as error:
            raise self._odd(str(error)) from None
        row = self._row(response.content) | {"seconds": time.perf_counter() - start}
        check_values(f"{self.endpoint}: the answer to {question.id!r} was not stored", row)
        return row

    def _row(self, body: bytes) -> dict[str, Any]:
        try:
            completion: Any = json.loads(body)
        except (ValueError, RecursionError):
            completion = None
        choices = _part(completion, "choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = _part(choice, "message")
        if not isinstance(message, dict):
            raise self._odd(body.decode("utf-8", "replace"))
        # A model that ends without a word has none: of a content that is missing the reason says why.
        text, reason = message.get("content") or "", _part(choice, "finish_reason") or "stop"
        reason = self._scrubbed(reason) if isinstance(reason, str) else type(reason).__name__
        if isinstance(text, str) and self.key is not None and self.key in text:
            raise InputError(
                f"{self.endpoint}: an answer holds the key in {KEY}: it was not stored; the key is not safe there"
            )
        served, tokens = _part(completion, "model"), _part(_part(completion, "usage"), "prompt_tokens")
        return {
            "text": None if reason == "content_filter" else text,
            "finish_reason": reason,
            "prompt_tokens": tokens if type(tokens) is int else None,
            "served": self._scrubbed(served) if isinstance(served, str) else None,
        }

    def _refused(self, error: Any) -> InputError:
        where, code = f"--endpoint {self.endpoint}", getattr(error, "status_code", None)
        message = self._scrubbed(str(error))
        if isinstance(error, self.library.APITimeoutError):
            reason = f"{where}: no whole answer in time"
        elif isinstance(error, self.library.APIConnectionError):
            cause = self._scrubbed(str(error.__cause__ or error))
            reason = f"{where}: nobody answers there ({cause}): start the server, or mend the URL"
        elif code in (401, 403):
            what = f"the key in {KEY}" if self.key else f"to answer without a key: set {KEY}"
            reason = f"{where} refuses {what} ({message})"
        elif code == 404:
            hint = "no OpenAI-compatible API there (its URL often ends in /v1)"
            reason = f"{where}: no model {self.model!r}, or {hint}: {message}"
        elif code is not None and 300 <= code < 400:
            elsewhere = self._scrubbed(error.response.headers.get("location", "an address that it does not tell"))
            reason = f"{where} sends the question on to {elsewhere}: give that URL, if you trust it with the prompts"
        else:
            reason = f"{where} refuses: {message}"
        resume = f"; what was answered is in {self.file}, and the same command goes on" if self.file.is_file() else ""
        return InputError(reason + resume)

    def _odd(self, body_text: str) -> InputError:
        return InputError(
            f"--endpoint {self.endpoint}: expected a chat completion as OpenAI's API gives it, found "
            f"{self._scrubbed(body_text)!r}"
        )

    def _scrubbed(self, text: str) -> str:
        """One line of what the server says, without the key that it may repeat: taken out before the line is cut."""
        clean = text if self.key is None else text.replace(self.key, f"[{KEY}]")
        line = " ".join(clean.split())
        return line if len(line) <= _QUOTED_LENGTH else line[:_QUOTED_LENGTH] + " ..."


def _part(value: Any, name: str) -> Any:
    """Value of a JSON object under a name; None of what is no object, too."""
    return value.get(name) if isinstance(value, dict) else None


def _library() -> Any:
    try:
        return importlib.import_module("openai")
    except ImportError:
        raise InputError(
            "--endpoint: expected the package openai, found none: pip install 'oversquashing-tools[hosted]'"
        ) from None


@contextmanager
def _mine(file: Path) -> Iterator[None]:
    """The file is one run's at a time."""
    if not file.parent.is_dir():
        raise InputError(f"--answers {file}: the directory {file.parent} does not exist; make it first")
    lock = FileLock(file.with_name(f".{file.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"--answers {file}: another run is asking for these answers; wait for it, or name another file"
        ) from None
    except OSError as error:
        raise InputError(f"--answers {file}: cannot be written: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


def _unanswered(file: Path, questions: tuple[Question, ...], how: Mapping[str, Any]) -> list[Question]:
    """The questions that the file has no answer to, once a line that a kill cut short is gone from its end."""
    if not file.exists():
        return list(questions)
    text = _complete_lines(file)
    rows = list(rows_of(file, text))
    if not rows:
        return list(questions)
    for place, row in rows:
        for name, value in how.items():
            if row.get(name) != value:
                raise InputError(
                    f"{place}: expected answers with {name} {value!r}, found {row.get(name)!r}: name another file"
                )
    read_answers(file, questions)  # all is checked as when it is read
    answered_ids = {row.get("id") for _, row in rows}
    return [question for question in questions if question.id not in answered_ids]


def _complete_lines(file: Path) -> str:
    """The file's text in whole lines: a row that a kill cut short goes, another end of a line that is missing is added."""
    text = text_of(file)
    end = text.rfind("\n") + 1
    lines, last = text[:end], text[end:]
    if not last:
        return text
    try:
        json.loads(last)
        is_cut = False
    except ValueError:
        is_cut = last[: len(_FIRST)] == _FIRST[: len(last)]
    complete_text = lines if is_cut else f"{text}\n"
    list(rows_of(file, complete_text))
    write_atomically(file, lambda part: part.write_text(complete_text, encoding="utf-8"))
    return complete_text


def _append(file: Path, row: Mapping[str, Any]) -> None:
    """One line, on disk before the next question."""
    try:
        with file.open("a", encoding="utf-8") as target:
            target.write(json.dumps(row) + "\n")
            target.flush()
            os.fsync(target.fileno())
    except OSError as error:
        raise InputError(f"--answers {file}: cannot be written: {error.strerror or error}") from None
