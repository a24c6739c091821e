"""A relay's part of the recording: the decider process writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.router.processes.wire import WireRecord, WireRecorded
from toolkit.router.recording import RecordingEntry

if TYPE_CHECKING:
    from toolkit.router.processes.relay_end import RelayEnd
    from toolkit.router.request import SubRequest


class RemoteRecording:
    """Tells the decider process of requests that are to be recorded."""

    def __init__(self, end: RelayEnd) -> None:
        self._end = end
        self._numbers = 0

    def begin(self, sub_request: SubRequest, arrived: float) -> RecordingEntry:
        """A request has come, at this monotonic time."""
        self._numbers += 1
        view = sub_request.view
        self._end.say(
            WireRecord(
                self._numbers, arrived, view.prompt_tokens, view.blocks, sub_request.prompt_bytes,
                view.request_class, sub_request.request_id,
            )
        )  # fmt: skip
        return RecordingEntry(self._numbers, 0, (), 0, view.request_class)

    def end(self, entry: RecordingEntry, output_tokens: int, prompt_tokens: int = 0) -> None:
        """It is over. `prompt_tokens`: as a prefill worker has counted them, 0 where none has."""
        self._end.say(WireRecorded(entry.at, output_tokens, prompt_tokens))
