"""Start the explorer: a server in a thread of this process, for this machine alone."""

from __future__ import annotations

import html
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from ostools.ground import InputError, TransformerBridge, checked_arguments

if TYPE_CHECKING:
    from uvicorn import Server

    from ostools.explorer.app import Runs


class Explorer:
    """A running explorer. `url`: its address. In a notebook it shows itself in the cell."""

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
        return (
            f'<iframe src="{address}" title="ostools explorer" width="100%" height="820" '
            'style="border:0"></iframe>'
        )


def require_port(port: int) -> None:
    """Refuse a number that no port has."""
    if not 0 <= port <= 65535:
        raise InputError(f"expected a port from 0 to 65535, found {port}")


@checked_arguments(InputError)
def explore(
    model: TransformerBridge,
    prompt: str = "",
    *,
    port: int = 0,
) -> Explorer:
    """A local page that shows, as you type a prompt, what is measured of each token.

        ost.explore(model)             # in a notebook: the page in the cell
        ost.explore(model, "1 0 1 1").url

    Args:
        prompt: what stands in the field at first. A link that holds a state has a prompt of its
            own.
        port: 0 takes a free one.

    The server runs in a thread of this process until `.stop()`. Every number comes from the public
    functions of ostools. Raises `InputError` if starlette and uvicorn are missing (`pip install
    'oversquashing-tools[explore]'`), and for a port on which it cannot listen. Cost: that of
    what the page asks for.
    """
    try:
        import uvicorn

        from ostools.explorer.app import Runs, application
    except ImportError:
        raise InputError(
            "explore: expected the packages starlette and uvicorn, found them missing: "
            "pip install 'oversquashing-tools[explore]'"
        ) from None

    require_port(port)
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise InputError(
            f"cannot listen on port {port}: {error.strerror}; choose another, or 0 for a free one"
        ) from None
    runs = Runs(model)
    settings: Any = {"log_level": "error", "access_log": False, "lifespan": "off", "ws": "none"}
    server = uvicorn.Server(
        uvicorn.Config(application(runs, prompt), timeout_graceful_shutdown=3, **settings)
    )
    thread = threading.Thread(
        target=server.run, args=([listener],), name="ostools-explorer-server", daemon=True
    )
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    return Explorer(f"http://127.0.0.1:{listener.getsockname()[1]}/", server, thread, runs)
