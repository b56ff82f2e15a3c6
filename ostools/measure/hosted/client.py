"""The HTTP client that asks an endpoint: what leaves this machine, how long an answer may take, and how large it may be.

Only `endpoint` imports this module, as it needs the package openai.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

import openai

from ostools.ground.errors import InputError, in_words
from ostools.ground.names import is_loopback

LARGEST = 8 * 2**20
"""The most bytes that an answer may have. Two million tokens of text are about as many."""
_HEADERS_TOO_LARGE = 431
"""The status with which the HTTP library stops reading headers, after some 100 kB."""
_SENT = {
    "accept": "application/json",
    "accept-encoding": "identity",  # a small packed answer may be a huge one
    "content-type": "application/json",
    "user-agent": f"OpenAI/Python {openai.__version__}",
}
"""The headers of a question: all are written here, as OPENAI_CUSTOM_HEADERS may name any."""
_OF_OPENAI = ("openai-organization", "openai-project")
"""Headers that openai takes from OPENAI_ORG_ID and OPENAI_PROJECT_ID: of no concern to anybody else."""


def client_of(endpoint: str, key: str, timeout: float, retries: int) -> openai.OpenAI:
    """OpenAI's client of an endpoint, which sends `key`, and keeps to the limits of `BoundedClient`. Raises `InputError`."""
    try:
        http = BoundedClient(endpoint, key, timeout)
        return openai.OpenAI(api_key=key, base_url=endpoint, timeout=timeout, max_retries=retries, http_client=http)
    except Exception as error:  # the HTTP library's own: an address that is none, certificates that cannot be read
        raise InputError(f"--endpoint {endpoint}: cannot be asked: {in_words(error)}") from None


class BoundedClient(openai.DefaultHttpxClient):
    """HTTP client that takes an answer whole, in time and in at most `LARGEST` bytes, or refuses it; no redirects.

    The environment's proxies serve https to other machines only. There they carry what is encrypted; of anything else they
    could read the key and the prompts. Headers that openai takes from the environment go to OpenAI alone.
    """

    def __init__(self, endpoint: str, key: str, timeout: float) -> None:
        parts = urlsplit(endpoint)
        host, is_encrypted = parts.hostname or "", parts.scheme == "https"
        is_openai = is_encrypted and (host == "openai.com" or host.endswith(".openai.com"))
        self._key, self._copied = key, _OF_OPENAI if is_openai else ()
        super().__init__(timeout=timeout, trust_env=is_encrypted and not is_loopback(host), follow_redirects=False)

    def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """The answer to a request. Raises `openai.APITimeoutError` once its time is over, `InputError` where it is too large.

        A timeout of the library's own counts anew from each byte, so that a server which drips never meets it.
        """
        headers = _SENT | {name: request.headers[name] for name in self._copied if name in request.headers}
        headers["authorization"] = f"Bearer {self._key}"
        sent = type(request)(
            request.method, request.url, headers=headers, content=request.read(), extensions=request.extensions
        )
        answer: Future[Any] = Future()
        late = threading.Event()

        def fetch() -> None:
            try:
                response = super(BoundedClient, self).send(sent, stream=True, **options)
                answer.set_result(_read_body(request, response, late))
            except BaseException as error:  # raised where it is waited for
                answer.set_exception(_in_our_words(error))

        # A daemon: nothing waits for a server that still drips when the command ends.
        threading.Thread(target=fetch, name="ostools-endpoint", daemon=True).start()
        try:
            return answer.result(request.extensions["timeout"]["read"])
        except TimeoutError:
            raise openai.APITimeoutError(request=request) from None
        finally:
            late.set()


def _in_our_words(error: BaseException) -> BaseException:
    """An `InputError` for headers without an end: a broken connection is tried again, and this is none."""
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "error_status_hint", None) == _HEADERS_TOO_LARGE:
            return InputError("expected headers of at most 100 kB, found longer ones")
        cause = cause.__cause__ or cause.__context__  # the library drops a cause on the way
    return error


def _read_body(request: Any, response: Any, late: threading.Event) -> Any:
    """The response to a request with its body read. Nobody reads the bytes that come after `late`."""
    packed = response.headers.get("content-encoding", "identity")
    body = bytearray()
    try:
        if packed != "identity":
            raise InputError(f"expected an answer that is not compressed, as was asked for, found {packed[:20]!r}")
        for part in response.iter_raw():
            body += part
            if len(body) > LARGEST:
                raise InputError(f"expected an answer of at most {LARGEST >> 20} MiB, found a longer one")
            if late.is_set():
                break
    finally:
        response.close()
    return type(response)(response.status_code, headers=response.headers, content=bytes(body), request=request)
