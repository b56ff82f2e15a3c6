"""Start the explorer: a server in a thread of this process, on loopback unless another host is
asked for.
"""

from __future__ import annotations

import html
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from ostools.explorer.recipe import Runs
from ostools.explorer.views import Subject
from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import is_loopback
from ostools.models.describe import IN_WORDS

if TYPE_CHECKING:
    from uvicorn import Server

_TOKEN_BYTES = 24


class Explorer:
    """A running explorer. `url`: its address, with the token where it needs one. In a notebook it
    shows itself in the cell.
    """

    def __init__(self, url: str, server: Server, thread: threading.Thread, runs: Runs) -> None:
        self.url = url
        self._server, self._thread, self._runs = server, thread, runs

    def stop(self) -> None:
        """End the server, and every run at its next step."""
        self._server.should_exit = True
        self._runs.close()
        self._thread.join(timeout=10)

    def wait(self) -> None:
        """Until it is stopped."""
        while self._thread.is_alive():
            self._thread.join(timeout=0.5)

    def __repr__(self) -> str:
        return f"Explorer: {self.url}"

    def _repr_html_(self) -> str:
        address = html.escape(self.url, quote=True)
        return f'<iframe src="{address}" title="ostools explorer" width="100%" height="820" style="border:0"></iframe>'


@checked_arguments(InputError, IN_WORDS)
def explore(
    model: TransformerBridge,
    prompt: str = "",
    *,
    against: TransformerBridge | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Explorer:
    """A local page that shows, as you type a prompt, what is measured of each token.

        ost.explore(model)             # in a notebook: the page in the cell
        ost.explore(model, "1 0 1 1").url

    Args:
        prompt: what stands in the field at first. A link that holds a state has a prompt of its
            own.
        against: a second model, which the page can show beside the first.
        host: the address to listen on. Beyond loopback the page's address holds a token, and a
            question without it is refused. The connection is not encrypted.
        port: 0 takes a free one.

    The server runs in a thread of this process until `.stop()`. Every number comes from the public
    functions of ostools. Raises `InputError` if starlette and uvicorn are missing (`pip install
    'oversquashing-tools[explore]'`), and for an address on which it cannot listen. Cost: that of
    what the page asks for.
    """
    try:
        import uvicorn

        from ostools.explorer.app import application
    except ImportError:
        raise InputError(
            "explore: expected the packages starlette and uvicorn, found them missing: "
            "pip install 'oversquashing-tools[explore]'"
        ) from None

    listener = _listener(host, port)
    token = None if is_loopback(host) else secrets.token_urlsafe(_TOKEN_BYTES)
    runs = Runs(Subject(model, against))
    guarded = application(runs, prompt, host, token)
    settings: Any = {"log_level": "error", "access_log": False, "lifespan": "off", "ws": "none"}
    server = uvicorn.Server(uvicorn.Config(guarded, timeout_graceful_shutdown=3, **settings))
    thread = threading.Thread(
        target=server.run, args=([listener],), name="ostools-explorer-server", daemon=True
    )
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    name = f"[{host}]" if ":" in host else host
    query = "" if token is None else f"?token={token}"
    return Explorer(f"http://{name}:{listener.getsockname()[1]}/{query}", server, thread, runs)


def _listener(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InputError(f"expected a port from 0 to 65535, found {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, UnicodeError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot listen on {host} port {port}: {why}; choose another port, or 0 for a free one"
        ) from None
    return listener
