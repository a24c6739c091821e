"""Rows of what a prompt is made of: the model, messages, tools, templates, media."""

from __future__ import annotations

from typing import Any, get_args

from toolkit.router.validate import content, media, reasons, rules
from toolkit.router.validate.declared import RELEASES
from toolkit.router.validate.field import Fate, row
from toolkit.router.validate.handover import ALIKE, NO_TEXT, OF_TOOLS, TEXT, TOOLS, UNTRIED
from toolkit.router.validate.meanings import meanings

_ROLES = [
    get_args(meanings(each).field("ChatCompletionMessageGenericParam", "role")[0])
    for each in RELEASES
]
_PLAIN = frozenset({"user", *set[str].intersection(*map(set, _ROLES))})
"""Roles that every release has."""


def plain_messages(value: Any) -> bool:
    """Conversations of nothing but a role and a text are what they should be: the models take
    30 us a message."""
    if type(value) is not list:
        return False
    for each in value:
        if type(each) is not dict or len(each) != 2 or type(each.get("content")) is not str:
            return False
        role = each.get("role")
        if type(role) is not str or role not in _PLAIN:
            return False
    return True


_ANTHROPIC = "messages count_tokens"
_MEDIA = "A stream with media in it goes on nowhere else"

PROMPT = (
    row("model", "chat completions messages count_tokens embeddings score classify", reasons.NAMED,
        rule=content.MODEL, inside=content.handover_of_model, handover=ALIKE,
        quick=lambda value: type(value) is str and value.isascii() and value != ""),
    row("model", "responses", reasons.NAMED, rule=content.BASE_MODEL, handover=ALIKE),
    row("lora_path", "chat completions generate embeddings",
        "which adapters there are is the deployment's business", Fate.REFUSE, allow="lora",
        rule=rules.NAMES, handover=UNTRIED, each=True),
    row("prompt", "completions", reasons.EMBEDDING, rule=content.PROMPT, handover=ALIKE),
    row("prompt", "responses", "SGLang has no stored prompts: send the text in `input`",
        Fate.REFUSE),
    row("text", "generate", reasons.PROMPT, rule=content.NOT_EMPTY, handover=ALIKE),
    row("input_ids", "chat generate", reasons.EMBEDDING, rule=rules.IDS, handover=ALIKE),
    row("input_embeds", "generate", reasons.EMBEDS, Fate.REFUSE, allow="input_embeds",
        handover=NO_TEXT),
    row("positional_embed_overrides", "generate", reasons.EMBEDS, Fate.REFUSE),
    row("messages", "chat", f"the prompt. {_MEDIA}",
        kept=True, rule=content.MESSAGES, quick=plain_messages, inside=media.handover_of,
        handover=ALIKE),
    row("messages", _ANTHROPIC, f"{reasons.NESTED}. {_MEDIA}", unread=True, rule=media.MESSAGES,
        inside=media.handover_of, handover=ALIKE),
    row("input", "responses", f"{reasons.NESTED}. {_MEDIA}", unread=True, rule=content.INPUT,
        inside=media.handover_of, handover=ALIKE),
    row("system", _ANTHROPIC, reasons.NESTED, unread=True, handover=ALIKE),
    row("instructions", "responses", reasons.PROMPT, handover=ALIKE),
    row("suffix", "completions", "models that complete within a text read it", handover=ALIKE),
    row("echo", "completions", "it puts the prompt before the answer", handover=ALIKE),
)  # fmt: skip
TEMPLATE = (
    row("tools", "chat", reasons.MAY_GUIDE, kept=True, rule=content.TOOLS, handover=TOOLS),
    row("tools", "messages responses count_tokens", reasons.MAY_GUIDE, unread=True,
        rule=content.TOOLS, handover=TOOLS),
    row("tool_choice", "chat", reasons.MAY_GUIDE, kept=True, null=True, handover=OF_TOOLS),
    row("tool_choice", "messages responses count_tokens", reasons.MAY_GUIDE, unread=True,
        handover=OF_TOOLS),
    row("parallel_tool_calls", "chat responses", reasons.MAY_GUIDE, handover=OF_TOOLS),
    row("max_tool_calls", "responses", reasons.IGNORED, handover=OF_TOOLS),
    row("reasoning_effort", "chat", reasons.TEMPLATE, handover=ALIKE),
    row("reasoning", "chat", "another spelling of reasoning_effort, for the chat template",
        rule=content.REASONING, handover=ALIKE),
    row("reasoning", "responses", reasons.TEMPLATE, unread=True, handover=ALIKE),
    # Clients of other servers send it to chat as a habit, and an older SGLang passes over it.
    row("thinking", "chat messages count_tokens", reasons.TEMPLATE, unread=True,
        lacking=Fate.DROP, handover=ALIKE),
    row("output_config", _ANTHROPIC, reasons.TEMPLATE, unread=True, handover=ALIKE),
    row("continue_final_message", "chat", reasons.TEMPLATE, handover=ALIKE),
    row("task", "chat", reasons.TEMPLATE, handover=UNTRIED),
    row("chat_template_kwargs", "chat responses",
        "variables of the template, and nothing else of what renders it", rule=content.TEMPLATE,
        handover=ALIKE),
    row("separate_reasoning stream_reasoning", "chat",
        "it changes how a parser divides the text, and not the text", handover=TEXT),
)  # fmt: skip
MEDIA = (
    row("image_data video_data audio_data", "generate",
        "workers open the file or fetch the URL that it names", Fate.REFUSE, allow="media",
        unread=True, rule=media.SOURCES, handover=NO_TEXT),
    row("images_config mm_processor_kwargs", "chat completions generate", reasons.MEDIA,
        Fate.REFUSE, allow="media", handover=NO_TEXT),
    row("use_audio_in_video video_config max_dynamic_patch min_dynamic_patch", "chat generate",
        reasons.MEDIA, Fate.REFUSE, allow="media", handover=NO_TEXT),
    row("modalities image_max_dynamic_patch video_max_dynamic_patch", "generate", reasons.MEDIA,
        Fate.REFUSE, allow="media", handover=NO_TEXT),
    row("mm_hashes mm_content_hashes", "generate",
        "a client could name the cache entry of another's image", Fate.REFUSE),
)  # fmt: skip
