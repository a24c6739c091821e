"""Whose key is this: client keys and the admin key, out of the environment or files."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolkit.keys import KeysError, client_keys, from_environment, one_key

if TYPE_CHECKING:
    from toolkit.settings.router.config import RouterConfig


OTHER_KEY = "the admin key there is not the one here"
"""Why an order of another router is not obeyed."""


@dataclass(frozen=True)
class Caller:
    """Who sent a request. `name`: the client key's name, by which requests are told apart; "" for
    somebody without a key, where none is asked for."""

    name: str = ""
    admin: bool = False
    digest: bytes = field(default=b"", compare=False, repr=False)
    """Of the key that was shown."""

    @property
    def known(self) -> bool:
        """It has shown a key."""
        return bool(self.name) or self.admin


class Keyring:
    """The keys that a router takes. Only their digests are kept."""

    def __init__(self, clients: list[tuple[str, str]], admin: str | None) -> None:
        self._known = [(_digest(key), Caller(name, digest=_digest(key))) for name, key in clients]
        self.clients = bool(clients)
        self.names = frozenset(name for name, _ in clients)
        self.admin = admin is not None
        if admin is not None:
            if any(hmac.compare_digest(_digest(admin), known) for known, _ in self._known):
                raise KeysError("the admin key is one of the client keys: make another one")
            self._known.append((_digest(admin), Caller(admin=True, digest=_digest(admin))))

    def caller(self, authorization: str) -> Caller | None:
        """Whose key an Authorization header holds; None: nobody's. Every key is compared, all in
        constant time, so the time taken tells neither which one matched nor how far."""
        if not self._known:
            return None
        scheme, _, rest = authorization.partition(" ")
        given = _digest(rest if scheme.lower() == "bearer" else authorization)
        found = None
        for known, caller in self._known:
            if hmac.compare_digest(given, known):
                found = caller
        return found

    def vouched(self, caller: Caller, text: bytes, proof: str) -> bool:
        """Whether another router may ask for that in the name of `caller`: its proof (`proof_of`)
        is made with the key that goes by that name here. Where no such key is asked for there is
        none to prove, and the word of who has the workers' key counts."""
        if not (self.admin if caller.admin else caller.name or self.clients):
            return True
        found = False
        for _, known in self._known:
            if known == caller:
                found |= hmac.compare_digest(proof_of(known, text).encode(), proof.encode())
        return found


def proof_of(caller: Caller, text: bytes) -> str:
    """That somebody has shown the caller's key to who sends this text; it says nothing of the key
    that could be sent instead. Empty without one."""
    return hmac.new(caller.digest, text, hashlib.sha256).hexdigest() if caller.digest else ""


def keyring(config: RouterConfig) -> Keyring:
    """The keys that a configuration names. Raises KeysError: one is missing or exposed."""
    clients = []
    if config.api_key_env is not None:
        clients.append((config.api_key_env, from_environment(config.api_key_env)))
    if config.api_keys_file is not None:
        clients += client_keys(config.api_keys_file)
    return Keyring(clients, one_key(config.admin_key_env, config.admin_key_file))


def _digest(key: str) -> bytes:
    """Of one length for all keys; headers hold the bytes as they came."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
