"""Who may come in at the router: its address, keys, permissions, origins."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, field_validator, model_validator

from toolkit.contract.addresses import LOOPBACK, check_host
from toolkit.settings.router.origins import check_origin
from toolkit.settings.router.permissions import ALLOWABLE
from toolkit.settings.rules import BOTH, OURS, KeyRule
from toolkit.settings.section import Section, key


class Access(Section):
    """Clients send one of the keys in `api_key_env` or `api_keys_file`; the admin the one in
    `admin_key_env` or `admin_key_file`. A host that is not loopback wants client keys, or `open`.
    """

    host: Annotated[str, AfterValidator(check_host)] = key(
        LOOPBACK, "address of the public port; one that is not loopback needs client keys", BOTH
    )
    api_key_env: str | None = key(None, "name of the variable that holds the key of clients", BOTH)
    api_keys_file: str | None = key(
        None, "file of client keys, a line each: KEY or NAME: KEY (mode 600)", OURS
    )
    admin_key_env: str | None = key(
        None, "name of the variable that holds the key for /admin/*", OURS
    )
    admin_key_file: str | None = key(None, "file that holds it (mode 600)", OURS)
    open: bool = key(False, "strangers may use a public port that is not loopback", BOTH)
    allow: frozenset[str] = key(
        frozenset(), "what clients may do beyond plain requests (see What clients may send)", OURS
    )
    cors: tuple[Annotated[str, AfterValidator(check_origin)], ...] = key(
        (),
        "origins whose web pages may use it (CORS), as `https://HOST`; `*`: all",
        KeyRule(("toolkit",), "only our router answers web pages: use kind: toolkit, or remove it"),
    )

    @field_validator("allow")
    @classmethod
    def _known_permissions(cls, names: frozenset[str]) -> frozenset[str]:
        for name in sorted(names - ALLOWABLE.keys()):
            raise ValueError(f"{name!r} is none of {', '.join(sorted(ALLOWABLE))}")
        if "media_urls" in names and "media" not in names:
            raise ValueError("'media_urls' needs 'media' too")
        return names

    @model_validator(mode="after")
    def _one_admin_key(self) -> Access:
        if self.admin_key_env and self.admin_key_file:
            raise ValueError("admin_key_env and admin_key_file both name the admin key: leave one")
        return self
