"""Who is to blame for a message that cannot be converted, in SGLang's own handler."""

from tests.sglang_python import found_by

CODE = """
import asyncio, json
from types import SimpleNamespace
from patches.base import install
from patches.http import message_answers
from sglang.srt.entrypoints.openai import serving_chat
raised = {"wrong": ValueError("roles must alternate"), "broken": RuntimeError("disk")}
def convert(self, request, raw=None):
    raise raised[request.model]
serving_chat.OpenAIServingChat._convert_to_internal_request = convert
install([message_answers.PATCH])
from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
chat = object.__new__(serving_chat.OpenAIServingChat)
chat._validate_request = lambda request: None
messages = AnthropicServing(chat)
found = {}
for model in raised:
    for stream in (False, True):
        asked = {"model": model, "max_tokens": 3, "stream": stream,
                 "messages": [{"role": "user", "content": "hi"}]}
        request = AnthropicMessagesRequest(**asked)
        answer = asyncio.run(messages.handle_messages(request, None))
        found[f"{model} {stream}"] = [answer.status_code, json.loads(answer.body)]
print(json.dumps(found))
"""


def test_a_client_s_mistake_is_told_and_a_server_s_is_not() -> None:
    found = found_by(CODE)
    for stream in (False, True):
        status, body = found[f"wrong {stream}"]
        error = {"type": "invalid_request_error", "message": "roles must alternate"}
        assert (status, body["error"]) == (400, error)
        status, body = found[f"broken {stream}"]
        assert (status, body["error"]["message"]) == (500, "Internal server error")
