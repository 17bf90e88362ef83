from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from proxy.config import Settings, load
from proxy.config_sources import fields

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "configuration.md"
EXAMPLE = ROOT / "conf" / "toktier.toml"
SETTING = re.compile(r"# ([a-z_]+) = (.+)")


def uncommented() -> str:
    """The example with every commented setting switched on."""
    return "".join(
        f"{match[1]} = {match[2]}\n" if (match := SETTING.fullmatch(line)) else line + "\n"
        for line in EXAMPLE.read_text("utf-8").splitlines()
    )


def generic(place: tuple[str, ...]) -> tuple[str, ...]:
    """The place with chosen names replaced."""
    return (place[0], "<name>", *place[2:]) if place[0] in ("upstreams", "models") else place


def leaves(tree: dict[str, Any], at: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    out: dict[tuple[str, ...], Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and key != "default_chat_template_kwargs":
            out |= leaves(value, (*at, key))
        else:
            out[(*at, key)] = value
    return out


def test_example_as_it_stands_is_a_valid_configuration(tmp_path: Path) -> None:
    settings = load(EXAMPLE, {}, {"TOKTIER_AUTH__STATE_DIR": str(tmp_path)})
    assert list(settings.models) == ["Qwen/Qwen3-8B"]
    assert settings.models["Qwen/Qwen3-8B"].tokenizer == "embedded"


def test_example_has_every_setting_and_no_other() -> None:
    assert {generic(p) for p in leaves(tomllib.loads(uncommented()))} == {place for place, _, _ in fields(Settings)}


def test_commented_values_are_the_real_defaults_or_said_not_to_be_set() -> None:
    lines = EXAMPLE.read_text("utf-8").splitlines()
    settings = tomllib.loads(uncommented())
    defaults = {place: model.model_fields[name] for place, model, name in fields(Settings)}
    shown = set()
    for place, value in leaves(settings).items():
        default = defaults[generic(place)].default
        if not any(line.startswith(f"# {place[-1]} = ") for line in lines):
            continue  # part of the example itself
        shown.add(generic(place))
        if default is None:
            at = next(i for i, line in enumerate(lines) if line.startswith(f"# {place[-1]} = "))
            comment = []
            while lines[at - 1].startswith("#"):
                at -= 1
                comment.append(lines[at])
            text = " ".join(reversed(comment))
            assert "Not set" in text, f"{place}: the comment must say that it is not set by default"
        else:
            assert default is not PydanticUndefined
            assert value == (
                str(default) if isinstance(default, Path) else list(default) if isinstance(default, tuple) else default
            ), place
    required = {("upstreams", "<name>", "url"), ("models", "<name>", "upstream"), ("models", "<name>", "tokenizer")}
    assert shown == set(defaults) - required


def test_every_commented_value_has_the_right_type() -> None:
    Settings.model_validate(tomllib.loads(uncommented()))


def test_examples_on_the_page_are_valid() -> None:
    text = PAGE.read_text("utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        Settings.model_validate(tomllib.loads(block))
