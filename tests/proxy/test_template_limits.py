"""A slow template, and one that makes too much, through the real proxy: served as text, and the next one with IDs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.fake_upstream import FakeUpstream
from tests.support.models import load_qwen3, qwen3
from tests.support.proxy import running, settings_for
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.template import ChatTemplate

MANY = 60
SLOW = (
    "{% if messages|length >= " + str(MANY) + " %}{% for a in messages %}{% for b in messages %}{% for c in messages %}"
    "{% for d in messages %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endif %}"
)
LARGE = (
    "{% if messages|length >= " + str(MANY) + " %}{% for a in messages %}{% for b in messages %}{{ b.content }}"
    "{% endfor %}{% endfor %}{% endif %}"
)
ALL = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def tokenize(source: str) -> Callable[[dict[str, Any]], list[int]]:
    template = ChatTemplate({"default": source})

    def ids(body: dict[str, Any]) -> list[int]:
        rendered = template.render(VllmProfile().normalise(body, template, ProfileSettings(engine_version="0.32.0")))
        found: list[int] = qwen3().reference.encode(rendered).tolist()
        return found

    return ids


def body(messages: int) -> bytes:
    roles = ("user", "assistant")
    return json.dumps(
        {"model": "m", "messages": [{"role": roles[n % 2], "content": f"message {n}"} for n in range(messages)]}
    ).encode()


@pytest.mark.parametrize(("slow", "detail"), [(SLOW, "time"), (LARGE, "size")])
async def test_a_request_beyond_the_limits_is_served_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str, detail: str
) -> None:
    renders: list[str] = []
    render = ChatTemplate.render

    def noted(self: ChatTemplate, *arguments: Any) -> str:
        renders.append(threading.current_thread().name)
        return render(self, *arguments)

    monkeypatch.setattr(ChatTemplate, "render", noted)
    source = ALL + slow
    (tmp_path / "template.jinja").write_text(source, "utf-8")
    model = {"chat_template": tmp_path / "template.jinja", "template_time_s": 0.5, "template_chars": 5000}
    async with (
        FakeUpstream(tokenize=tokenize(source)) as up,
        running(settings_for(up.url, tmp_path, model=model), load_qwen3) as proxy,
        aiohttp.ClientSession() as client,
    ):

        async def post(raw: bytes) -> int:
            async with client.post(proxy.url + "/v1/chat/completions", data=raw) as reply:
                await reply.read()
                return reply.status

        assert await post(body(3)) == 200
        up.scripts.append([{"send": "{}"}])  # the engine's own rendering has no limit
        renders.clear()
        assert await post(body(MANY)) == 200
        assert "MainThread" not in renders[1:], "begun on the event loop, it was not left there"
        assert await post(body(5)) == 200
        lines = await proxy.logged(3)
        assert [line["bypass"] for line in lines] == [None, "template_limit", None]
        assert lines[1]["bypass_detail"] == detail
        assert json.loads(body(MANY)).items() <= up.chats[1].json.items()
        assert "kv_transfer_params" not in up.chats[1].json
        assert all("kv_transfer_params" in seen.json for seen in (up.chats[0], up.chats[2]))
