"""Where an endpoint is, and whether the key may go there."""

from __future__ import annotations

import os
from ipaddress import ip_address
from urllib.parse import urlsplit

from ostools.ground.errors import InputError

KEY = "OPENAI_API_KEY"
"""The environment variable that holds the key."""


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


def is_loopback(host: str) -> bool:
    """Whether it is this machine, which nobody else can listen to or reach."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
