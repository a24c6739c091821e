"""Origins of web pages, as a configuration names them."""

from yarl import URL

ANY = "*"
"""Every page."""


def check_origin(told: str) -> str:
    """An origin as browsers send it. ValueError: it is none, and how to write one."""
    if told == ANY:
        return told
    try:
        url = URL(told)
        plain = url.scheme in ("http", "https") and url == url.origin() and url.user is None
    except ValueError:
        plain = False
    if not plain or told.endswith(("/", "?", "#")):
        raise ValueError(
            f"{told!r} is no origin: write https://HOST or https://HOST:PORT as a browser has it, "
            "without a path, or '*' for every page"
        )
    return str(url.origin())
