"""What vLLM itself makes of chat requests: its own validation, normalisation, template and tokenizer, in one process.

Run by the engine's Python, not by TokTier's: ``python vllm_oracle.py MODEL_FOLDER INPUT OUTPUT``. No weights are
loaded. It imports nothing of TokTier, so that it stays an independent witness.

INPUT has one JSON object a line: ``body`` (the request's JSON text), ``settings`` (``chat_template``,
``content_format``, ``default_template_kwargs``, ``exclude_tools``; all optional). OUTPUT has one a line, in order:
``{"text", "ids"}``, or ``{"error", "stage"}``. Stage ``validate``: the body is refused, whatever IDs it carries;
``render``: refused only because it is rendered; ``parser``: rendered, then refused by code that runs with IDs as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="ERROR")


class Oracle:
    def __init__(self, folder: str) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.renderers.registry import renderer_from_config

        args = EngineArgs(
            model=folder,
            dtype="float32",
            enforce_eager=True,
            max_model_len=1 << 20,
            hf_overrides={"max_position_embeddings": 1 << 20},
        )
        config = args.create_engine_config()
        self.model_config = config.model_config
        self.renderer = renderer_from_config(config)
        self.online: dict[str, Any] = {}
        self.rendered = False
        render = self.renderer.render_chat_async

        async def noting(*args: Any, **kwargs: Any) -> Any:
            made = await render(*args, **kwargs)
            self.rendered = True
            return made

        self.renderer.render_chat_async = noting

    def renderer_for(self, settings: dict[str, Any]) -> Any:
        from vllm.renderers.online_renderer import OnlineRenderer

        key = json.dumps(settings, sort_keys=True)
        if key not in self.online:
            self.online[key] = OnlineRenderer(
                self.model_config,
                self.renderer,
                request_logger=None,
                chat_template=settings.get("chat_template"),
                chat_template_content_format=settings.get("content_format", "auto"),
                enable_auto_tools=True,
                exclude_tools_when_tool_choice_none=settings.get("exclude_tools", False),
                tool_parser="hermes",
                reasoning_parser="qwen3",
                default_chat_template_kwargs=settings.get("default_template_kwargs"),
            )
        return self.online[key]

    async def answer(self, case: dict[str, Any]) -> dict[str, Any]:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        try:
            # json.loads, then model_validate on the object: what FastAPI does with a body.
            request = ChatCompletionRequest.model_validate(json.loads(case["body"]))
        except Exception as error:
            return {"error": type(error).__name__, "stage": "validate"}
        self.rendered = False
        try:
            made = await self.renderer_for(case.get("settings") or {}).render_chat(request)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:300], "stage": "parser" if self.rendered else "render"}
        if not isinstance(made, tuple):
            # Refused before anything is rendered (a tool choice that needs a parser, an untrusted template).
            return {"error": "ErrorResponse", "stage": "validate"}
        (prompt,) = made[1]
        return {"text": prompt.get("prompt"), "ids": list(prompt["prompt_token_ids"])}


async def main(folder: str, source: Path, target: Path) -> None:
    logging.disable(logging.CRITICAL)
    oracle = Oracle(folder)
    with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(await oracle.answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
