from __future__ import annotations

from typing import Any

import pytest

from toktier.errors import Unrenderable
from toktier.profiles.eligibility import COMMON, FieldRule, check_fields
from toktier.profiles.sglang import FIELDS
from toktier.reasons import BYPASS_HELP, Bypass

DOCUMENTED = {
    "kv_transfer_params": (Bypass.CLIENT_KV_TRANSFER_PARAMS, {}),
    "nvext": (Bypass.CLIENT_NVEXT, {}),
    "echo": (Bypass.ECHO, True),
    "chat_template": (Bypass.REQUEST_TEMPLATE, "{{ x }}"),
    "documents": (Bypass.DOCUMENTS, []),
    "continue_final_message": (Bypass.CONTINUE_FINAL_MESSAGE, True),
    "add_generation_prompt": (Bypass.NO_GENERATION_PROMPT, False),
    "add_special_tokens": (Bypass.ADD_SPECIAL_TOKENS, "true"),
    "truncate_prompt_tokens": (Bypass.TRUNCATE_PROMPT_TOKENS, -1),
    "use_beam_search": (Bypass.BEAM_SEARCH, True),
    "return_prompt_text": (Bypass.PROMPT_TEXT_ASKED, True),
    "mm_processor_kwargs": (Bypass.MULTIMODAL, {}),
    "media_io_kwargs": (Bypass.MULTIMODAL, {}),
}
PLAIN = ("echo", "continue_final_message", "add_generation_prompt", "add_special_tokens", "use_beam_search")


def test_the_table_is_what_is_documented() -> None:
    assert {rule.field: rule.bypass for rule in COMMON} == {name: bypass for name, (bypass, _) in DOCUMENTED.items()}


@pytest.mark.parametrize("field", DOCUMENTED)
def test_a_field_that_rules_ids_out(field: str) -> None:
    bypass, value = DOCUMENTED[field]
    with pytest.raises(Unrenderable) as raised:
        check_fields({field: value})
    assert raised.value.bypass is bypass
    if field not in PLAIN:
        check_fields({field: None})


@pytest.mark.parametrize("rules", [COMMON, FIELDS])
@pytest.mark.parametrize("field", PLAIN)
def test_null_for_a_plain_bool_is_for_the_engine_to_judge(field: str, rules: tuple[FieldRule, ...]) -> None:
    """vLLM refuses it; others may take it for false, or for the default."""
    with pytest.raises(Unrenderable) as raised:
        check_fields({field: None}, rules)
    assert raised.value.bypass is DOCUMENTED[field][0]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"echo": False, "continue_final_message": False, "use_beam_search": False, "add_special_tokens": False},
        {"add_generation_prompt": True, "return_prompt_text": False, "add_special_tokens": True},
        {"stream": True, "max_tokens": 5, "store": True, "metadata": {}, "logprobs": True, "n": 2, "stop": ["x"]},
    ],
)
def test_harmless_fields(body: dict[str, Any]) -> None:
    check_fields(body)


@pytest.mark.parametrize("value", [0, 1, "", "false", "true", [], 0.0])
def test_values_that_only_an_engine_would_coerce_are_not_guessed(value: Any) -> None:
    for field in ("echo", "add_generation_prompt", "add_special_tokens"):
        with pytest.raises(Unrenderable):
            check_fields({field: value})


def test_every_bypass_has_its_sentence() -> None:
    assert set(BYPASS_HELP) == set(Bypass)
