"""A server on this machine that answers as an OpenAI-compatible one does, as a test tells it to."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]
"""A status, and what is sent: an object as JSON, or bytes as they are."""


def completion(text: str | None, reason: str = "stop", tokens: int = 7) -> dict[str, Any]:
    """A chat completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    return {
        **{"id": "x", "object": "chat.completion", "created": 1, "model": "served-1"},
        **{"choices": [choice], "usage": usage},
    }


@contextmanager
def served(reply: Callable[[str], Reply]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The endpoint's URL, and every question as it came: its body, with the header of
    authorization.

    reply: what is answered to a prompt.
    """
    heard: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append(body | {"path": self.path, "authorization": self.headers["Authorization"]})
            self._send(*reply(body["messages"][0]["content"]))

        def _send(self, status: int, found: Any) -> None:
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
