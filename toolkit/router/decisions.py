"""The router's decisions on record, where its configuration or the environment asks for it."""

from __future__ import annotations

import os

from toolkit.contract.variables import ROUTER_RECORD_VARIABLE
from toolkit.policies.base import Policy
from toolkit.router.line_file import LineFile
from toolkit.settings.router.config import RouterConfig

MOST_BYTES = 2**30
"""Of each side's file."""


class _Sink:
    """Text to the file's bytes."""

    def __init__(self, path: str) -> None:
        self.file = LineFile(path, "record_decisions", MOST_BYTES)

    def write(self, line: str) -> None:
        self.file.write(line.encode())


class DecisionRecord:
    """The files of both sides, where asked for. ConfigError: they cannot be written."""

    def __init__(self, config: RouterConfig) -> None:
        self._seed, self._tau = config.policy_seed, config.tau
        name = config.record_decisions or os.environ.get(ROUTER_RECORD_VARIABLE)
        sides = ("prefill", "decode") if name else ()
        self._sinks = {side: _Sink(f"{name}.{side}.jsonl") for side in sides}

    def of(self, policy: Policy, side: str) -> Policy:
        """The policy, recorded if that was asked for (`toolkit.decide.record`)."""
        if not self._sinks:
            return policy
        from toolkit.decide.record import recorded

        return recorded(policy, self._sinks[side], self._seed, self._tau)

    def close(self) -> None:
        for each in self._sinks.values():
            each.file.close()
