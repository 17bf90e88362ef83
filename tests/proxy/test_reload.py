from __future__ import annotations

from proxy.config import Settings
from proxy.config_sources import fields
from proxy.reload import NEEDS_RESTART, diff

BASE = {
    "upstreams": {"a": {"url": "http://a", "api_key": "one"}, "b": {"url": "http://b"}},
    "models": {"m": {"upstream": "a"}, "n": {"upstream": "b"}},
}


def test_same_settings_change_nothing() -> None:
    result = diff(Settings(**BASE), Settings(**BASE))
    assert (result.applied, result.needs_restart) == ([], [])
    assert result.settings == Settings(**BASE)


def test_what_needs_a_restart_keeps_its_old_value() -> None:
    old = Settings(**BASE)
    new = Settings(
        server={"port": 1, "max_body_bytes": 2048},
        log={"level": "debug", "path": "/x"},
        auth={"hmac_key": "k" * 20},
        **BASE,
    )
    result = diff(old, new)
    assert result.applied == ["server.max_body_bytes", "log.level"]
    assert result.needs_restart == ["server.port", "auth.hmac_key", "log.path"]
    assert result.settings.server.port == 8080
    assert result.settings.server.max_body_bytes == 2048
    assert result.settings.log.path is None
    assert result.settings.log.level == "debug"
    assert result.settings.auth.hmac_key is None


def test_models_and_upstreams_by_name() -> None:
    new = Settings(
        upstreams={"a": {"url": "http://a", "api_key": "two"}, "c": {"url": "http://c"}},
        models={"m": {"upstream": "c", "aliases": ["x"]}, "o": {"upstream": "c"}},
        default_upstream="c",
    )
    result = diff(Settings(**BASE), new)
    assert result.applied == [
        "upstreams.a.api_key",
        "upstreams.b (removed)",
        "upstreams.c (added)",
        "models.m.upstream",
        "models.m.aliases",
        "models.n (removed)",
        "models.o (added)",
        "default_upstream",
    ]
    assert result.needs_restart == []
    assert result.settings == new


def test_names_never_values() -> None:
    result = diff(Settings(**BASE), Settings(upstreams={"a": {"url": "http://a", "api_key": "CANARY"}}))
    assert "upstreams.a.api_key" in result.applied
    assert "CANARY" not in repr(result)


def test_classification_names_settings_that_exist() -> None:
    assert {".".join(place) for place, _, _ in fields(Settings)} >= NEEDS_RESTART
