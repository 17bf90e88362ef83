"""From files, variables and options to one nested mapping, and from pydantic's errors to lines for people.

Knows no setting by name: it walks the model classes. Reads no environment itself (the caller passes it in).
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

PREFIX = "TOKTIER_"
_BARE = re.compile(r"[\w/<>-]+")
Place = tuple[str, ...]
Origins = dict[Place, str]


@dataclass(frozen=True)
class Problem:
    """One thing to put right: which setting, what is wrong, what to do."""

    place: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        end = "" if self.remedy.endswith("?") else "."
        line = f"{self.place}: {self.problem}. {self.remedy[:1].upper()}{self.remedy[1:]}{end}"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class ConfigError(Exception):
    """The configuration cannot be used (the operator's to fix). ``problems`` holds every one that was found."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


# The shape of the settings ------------------------------------------------------------------------------------------


def _bare(annotation: Any) -> Any:
    """The annotation without Annotated and without "or None"."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType):
            annotation = next(a for a in get_args(annotation) if a is not type(None))
        else:
            return annotation


def table(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """(the section's class or None for a plain value, whether it is a mapping of names to such sections)."""
    annotation = _bare(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) is dict:
        inner = _bare(get_args(annotation)[1])
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return inner, True
    return None, False


def fields(model: type[BaseModel], at: Place = ()) -> Iterator[tuple[Place, type[BaseModel], str]]:
    """Every plain setting as (place, the class that holds it, its field name); ``<name>`` stands for a chosen name."""
    for name, field in model.model_fields.items():
        section, named = table(field.annotation)
        if section is None:
            yield (*at, name), model, name
        else:
            yield from fields(section, (*at, name, "<name>") if named else (*at, name))


def leaf(root: type[BaseModel], place: Place) -> Any:
    """The bare type of the setting at ``place``; None where there is none."""
    model, rest = root, list(place)
    while rest:
        field = model.model_fields.get(rest.pop(0))
        if field is None:
            return None
        section, named = table(field.annotation)
        if section is None:
            return _bare(field.annotation)
        if named and rest:
            rest.pop(0)
        model = section
    return None


# Sources ------------------------------------------------------------------------------------------------------------


def merge(
    root: type[BaseModel], path: Path | None, environ: Mapping[str, str], cli: Mapping[str, Any]
) -> tuple[dict[str, Any], Origins]:
    """The three sources, later over earlier, and where each value came from."""
    origins: Origins = {}
    tree: dict[str, Any] = {}
    if path is not None:
        from_file = _read_toml(path)
        _anchor(root, from_file, path.absolute().parent)
        _overlay(tree, from_file, str(path), origins)
    _environment(root, tree, environ, origins)
    _overlay(tree, cli, "the command line", origins)
    return tree, origins


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Problem(str(path), f"not valid TOML ({error})", "correct that line")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem(str(path), "not UTF-8 text", "save it as UTF-8")]) from None
    except OSError as error:
        raise ConfigError([Problem(str(path), error.strerror or "cannot be read", "check --config")]) from None


def _overlay(tree: dict[str, Any], over: Mapping[str, Any], origin: str, origins: Origins, at: Place = ()) -> None:
    for key, value in over.items():
        here = (*at, key)
        origins[here] = origin
        if isinstance(value, Mapping):
            inner = tree.get(key)
            tree[key] = inner = dict(inner) if isinstance(inner, Mapping) else {}
            _overlay(inner, value, origin, origins, here)
        else:
            tree[key] = value


def _anchor(root: type[BaseModel], tree: dict[str, Any], folder: Path, at: Place = ()) -> None:
    """Makes relative paths of a file relative to that file's folder, in place."""
    for key, value in tree.items():
        here = (*at, key)
        if isinstance(value, dict):
            _anchor(root, value, folder, here)
        elif isinstance(value, str) and value and not value.startswith("~"):
            is_tokenizer = here[0] == "models" and here[2:] == ("tokenizer",)
            # A tokenizer may be a hub id, which looks like a relative path: it is one only where it exists.
            is_local = is_tokenizer and (value.startswith(("./", "../")) or (folder / value).exists())
            if leaf(root, here) is Path or is_local:
                tree[key] = str(folder / value)


def _environment(root: type[BaseModel], tree: dict[str, Any], environ: Mapping[str, str], origins: Origins) -> None:
    known = {"_".join(place).upper() for place, _, _ in fields(root) if "<name>" not in place and len(place) > 1}
    problems = []
    for variable in sorted(v for v in environ if v.upper().startswith(PREFIX)):
        name, raw = variable[len(PREFIX) :], environ[variable]
        if not raw:
            continue  # what compose files and CI make of a variable that is not set
        if "__" not in name and name.lower() not in root.model_fields:
            # Other variables of that prefix are not ours: TOKTIER_TEST_*, and what Kubernetes sets for a service of
            # that name (always tcp://...). A setting written with one underscore is a mistake, though.
            if name.upper() in known and not raw.startswith("tcp://"):
                section = next(s for s in root.model_fields if name.lower().startswith(s + "_"))
                right = f"{PREFIX}{section.upper()}__{name[len(section) + 1 :].upper()}"
                problems.append(Problem(variable, "one underscore between table and key", f"write {right}"))
            continue
        place, error = _resolve(root, tree, name.split("__"))
        if error:
            problems.append(Problem(variable, *error))
            continue
        try:
            value = _parse(leaf(root, place), raw)
        except ValueError:
            problems.append(Problem(variable, "not valid JSON", "write a JSON list or object"))
            continue
        node = tree
        for key in place[:-1]:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                problems.append(Problem(variable, "overrides a key of something that is no table", "correct the file"))
                break
        else:
            node[place[-1]] = value
            origins[place] = variable
    if problems:
        raise ConfigError(problems)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name).lower()


def _resolve(root: type[BaseModel], tree: Mapping[str, Any], parts: list[str]) -> tuple[Place, tuple[str, str] | None]:
    """Variable parts to a place: keys in lower case; chosen names as in the file where one matches."""
    model, node = root, tree
    place: list[str] = []
    for i, part in enumerate(parts):
        key = part.lower()
        field = model.model_fields.get(key)
        if field is None:
            return (), (f"there is no setting {'.'.join([*place, key])}", suggestion(key, model))
        place.append(key)
        section, named = table(field.annotation)
        if section is None:
            if i + 1 < len(parts):
                return (), (f"{'.'.join(place)} is a value, not a table", "leave out what follows it")
            return tuple(place), None
        model, node = section, node.get(key, {}) if isinstance(node, Mapping) else {}
        if named:
            break
    else:
        return (), ("names a table, not a setting", f"add __ and a key: {', '.join(model.model_fields)}")
    if len(parts) != i + 3:
        return (), ("needs a name and a key", f"write {PREFIX}{'__'.join(parts[: i + 1]).upper()}__NAME__KEY")
    names = [n for n in node if isinstance(n, str) and _slug(n) == _slug(parts[i + 1])]
    if len(names) > 1:
        return (), (f"matches several names: {', '.join(names)}", "set it in the file instead")
    key = parts[i + 2].lower()
    place += [names[0] if names else parts[i + 1].lower(), key]
    if key not in model.model_fields:
        return (), (f"there is no setting {'.'.join(place)}", suggestion(key, model))
    return tuple(place), None


def _parse(kind: Any, raw: str) -> Any:
    """A variable's text as what the setting's type takes; numbers and booleans are left to pydantic."""
    if get_origin(kind) is dict:
        return json.loads(raw)
    if get_origin(kind) in (list, tuple):
        if raw.lstrip().startswith("["):
            return json.loads(raw)
        return [item.strip() for item in raw.split(",") if item.strip()]
    return raw


# Errors -------------------------------------------------------------------------------------------------------------


def suggestion(key: str, model: type[BaseModel]) -> str:
    """A remedy for an unknown key."""
    near = difflib.get_close_matches(key, model.model_fields, 1, 0.6)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(model.model_fields)}"


def where(place: Place, origins: Origins) -> str:
    """``models.qwen3.tokenizer (conf/toktier.toml)``: the setting, and the source of its value where it has one."""
    origin = origins.get(place)
    return f"{dotted(place)} ({origin})" if origin else dotted(place)


def dotted(place: Place) -> str:
    """A setting's place as TOML writes it."""
    return ".".join(part if _BARE.fullmatch(part) else json.dumps(part) for part in place) or "configuration"


def explain(root: type[BaseModel], error: Mapping[str, Any], origins: Origins) -> Problem:
    """One of pydantic's errors as a `Problem`. The offending value is never repeated: it may be a secret."""
    raw_place: Place = tuple(str(part) for part in error["loc"])
    place, model, field = _known_part(root, raw_place)
    kind, context = error["type"], error.get("ctx", {})
    at = where(raw_place if kind == "extra_forbidden" else place, origins)
    if kind == "extra_forbidden":
        return Problem(at, "unknown setting", suggestion(raw_place[-1], model))
    if kind == "missing":
        return Problem(at, "missing", "add it" + _meaning(model, field))
    if kind == "value_error":
        problem, _, remedy = str(context["error"]).partition("|")
        return Problem(at, problem, remedy)
    if kind == "literal_error":
        return Problem(at, "not one of the possible values", f"choose {context['expected']}")
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return Problem(at, "must be a table", f"write it as [{dotted(place)}]")
    expected = str(error["msg"]).replace("Input should be", "must be")
    return Problem(at, expected.split(", unable")[0], "correct it" + _meaning(model, field))


def _known_part(root: type[BaseModel], place: Place) -> tuple[Place, type[BaseModel], str | None]:
    """The part of an error's place that is a setting, the class that holds it, and its field name."""
    model, field, i = root, None, 0
    while i < len(place):
        info = model.model_fields.get(place[i])
        if info is None:
            break
        field, i = place[i], i + 1
        section, named = table(info.annotation)
        if section is None:
            break
        if named:
            if i >= len(place):
                break
            i += 1
        if i < len(place):
            model, field = section, None
    return place[: max(i, 1)], model, field


def _meaning(model: type[BaseModel], field: str | None) -> str:
    info = model.model_fields.get(field) if field else None
    return f" ({info.description})" if info is not None and info.description else ""
