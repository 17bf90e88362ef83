"""`toktier template`: whether and how a chat template is rendered incrementally, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from proxy.config import EMBEDDED_TOKENIZER
from toktier.errors import UnusableFile
from toktier.folding.explain import explained
from toktier.template import ChatTemplate
from toktier.tokenizer import EMBEDDED

_DEPENDS = {
    "values": "reads",
    "thresholds": "compares its number with",
    "lists": "reads positions of",
    "outer": "may read the outer value of",
}


def templates_at(name: str) -> list[tuple[str, str]]:
    """(name, source): of a Jinja file, of a ``tokenizer_config.json``, of a tokenizer's folder, or of the embedded
    tokenizer. Raises `UnusableFile`."""
    path = EMBEDDED if name == EMBEDDED_TOKENIZER else Path(name)
    files: dict[str, bytes] = {}
    config: dict[str, Any] = {}
    try:
        if path.is_dir():
            names = [*path.glob("*.jinja"), *path.glob("additional_chat_templates/*.jinja"), *path.glob("*.json")]
            wanted = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
            for one in names:
                relative = one.relative_to(path).as_posix()
                if relative in wanted or "/" in relative:
                    files[relative] = one.read_bytes()
            config = json.loads(files.get("tokenizer_config.json", b"{}"))
        elif path.suffix == ".json":
            config = json.loads(path.read_bytes())
        else:
            files["chat_template.jinja"] = path.read_bytes()
    except (OSError, ValueError) as error:
        raise UnusableFile(f"{path}: {type(error).__name__}; give a Jinja file, a JSON file or a folder") from error
    # Special tokens do not matter here, so what the files leave to the tokenizer's class is no obstacle.
    given = {"chat_template": config.get("chat_template"), "tokenizer_class": "PreTrainedTokenizerFast"}
    template = ChatTemplate.load((files, given))
    if template is None:
        raise UnusableFile(f"{path} holds no chat template")
    sources = template.sources()
    return [(name if len(sources) == 1 else f"{name} ({number + 1})", one) for number, one in enumerate(sources)]


def report(path: str) -> list[dict[str, Any]]:
    """Of each template at ``path``: its ``name`` and what `toktier.folding.explain.explained` says. Raises
    `UnusableFile`."""
    env = ChatTemplate({"default": ""}).environment
    try:
        return [{"name": name} | explained(env, source) for name, source in templates_at(path)]
    except TemplateSyntaxError as error:
        raise UnusableFile(f"{path}, line {error.lineno}: {error.message}") from error


def text(told: list[dict[str, Any]]) -> str:
    lines: list[str] = []
    for one in told:
        folded = sum(loop["folded"] for loop in one["loops"])
        lines.append(f"{one['name']}: {_head(one, folded)}")
        for loop in one["loops"]:
            fate = "folded" if loop["folded"] else "kept as it is"
            lines.append(f"  line {loop['line']}, over {loop['over']}: {fate}")
            lines += [f"    {line}" for line in (_reads(loop) if loop["folded"] else [_why(loop)])]
    return "\n".join(lines)


def _head(one: dict[str, Any], folded: int) -> str:
    if one["folds"] == "no":
        return f"not folded: {_why(one)}"
    return f"{folded} of {len(one['loops'])} loops folded"


def _why(one: dict[str, Any]) -> str:
    return f"{one['help']} ({one['detail']})" if one["detail"] else one["help"]


def _reads(loop: dict[str, Any]) -> list[str]:
    lines = [f"{word} {', '.join(loop['reads'][kind])}" for kind, word in _DEPENDS.items() if kind in loop["reads"]]
    if loop["looks_up"]:
        lines.append(f"searches lists for {', '.join(loop['looks_up'])}")
    if loop["carried"]:
        lines.append(f"carries {', '.join(loop['carried'])}")
    if loop["written"]:
        lines.append(f"leaves {', '.join(loop['written'])}")
    if loop["breaks"]:
        lines.append("may break")
    return lines or ["reads its item only"]
