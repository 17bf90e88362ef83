from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from proxy.config import Auth, ConfigError, Settings, Shadow, config_file, load
from proxy.config_checks import warnings

CLI = {"upstreams": {"default": {"url": "http://engine:8000"}}, "models": {"m": {"upstream": "default"}}}


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {"TOKTIER_AUTH__STATE_DIR": str(tmp_path / "state")}


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def problems(path: Path | None, cli: dict[str, Any] | None = None, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, cli or {}, environ or {})
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems), "a problem is one line"
    return lines


def test_simple_case_needs_only_an_upstream_and_a_model(state: dict[str, str]) -> None:
    settings = load(None, CLI, state)
    assert settings.upstreams["default"].url == "http://engine:8000"
    assert settings.models["m"].tokenizer is None
    assert settings.default_upstream == "default"
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert settings.server.max_body_bytes == 64 * 1024 * 1024


def test_options_go_before_variables_and_those_before_the_file(tmp_path: Path, state: dict[str, str]) -> None:
    path = write(tmp_path / "t.toml", '[server]\nport = 1\nhost = "a"\n[log]\nlevel = "error"\n')
    environ = {**state, "TOKTIER_SERVER__PORT": "2", "TOKTIER_SERVER__HOST": "b"}
    assert load(path, {}, state).server.port == 1
    assert load(path, {}, environ).server.port == 2
    settings = load(path, {"server": {"port": "3"}}, environ)
    assert (settings.server.port, settings.server.host, settings.log.level) == (3, "b", "error")


def test_variables_reach_every_kind_of_setting(tmp_path: Path, state: dict[str, str]) -> None:
    path = write(
        tmp_path / "t.toml",
        '[upstreams.gpu]\nurl = "http://h"\n[models."Qwen/Qwen3-8B"]\nupstream = "gpu"\naliases = ["x"]\n',
    )
    environ = {
        **state,
        "TOKTIER_DEFAULT_UPSTREAM": "gpu",
        "TOKTIER_MODELS__QWEN_QWEN3_8B__ALIASES": "lora-a, lora-b",
        "TOKTIER_MODELS__QWEN_QWEN3_8B__DEFAULT_CHAT_TEMPLATE_KWARGS": '{"enable_thinking": false}',
        "TOKTIER_UPSTREAMS__GPU__VERIFY_TLS": "false",
        "TOKTIER_UPSTREAMS__Other__URL": "https://other/v1/",
    }
    settings = load(path, {}, environ)
    model = settings.models["Qwen/Qwen3-8B"]
    assert list(settings.models) == ["Qwen/Qwen3-8B"]
    assert model.aliases == ("lora-a", "lora-b")
    assert model.default_chat_template_kwargs == {"enable_thinking": False}
    assert settings.upstreams["gpu"].verify_tls is False
    assert settings.upstreams["other"].url == "https://other"
    environ["TOKTIER_MODELS__QWEN_QWEN3_8B__ALIASES"] = '["with,comma"]'
    assert load(path, {}, environ).models["Qwen/Qwen3-8B"].aliases == ("with,comma",)


def test_variables_of_others_are_left_alone(state: dict[str, str]) -> None:
    # What Kubernetes sets for services named "toktier" and "toktier-server", and this project's own test variables.
    environ = {
        **state,
        "TOKTIER_SERVICE_HOST": "10.0.0.1",
        "TOKTIER_PORT": "tcp://10.0.0.1:80",
        "TOKTIER_SERVER_PORT": "tcp://10.0.0.1:80",
        "TOKTIER_SERVER_PORT_80_TCP_ADDR": "10.0.0.1",
        "TOKTIER_TEST_DATA": "x",
        "TOKTIER_CONFIG": "x",
        "TOKTIER_UPSTREAMS__DEFAULT__API_KEY": "",
        "TOKTIER_SERVER__PORT": "",
    }
    assert load(None, CLI, environ) == load(None, CLI, state)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("TOKTIER_SERVR__PORT", "1", "TOKTIER_SERVR__PORT: there is no setting servr. Did you mean server?"),
        ("TOKTIER_SERVER__PROT", "1", "TOKTIER_SERVER__PROT: there is no setting server.prot. Did you mean port?"),
        (
            "TOKTIER_SERVER_PORT",
            "1",
            "TOKTIER_SERVER_PORT: one underscore between table and key. Write TOKTIER_SERVER__PORT.",
        ),
        (
            "TOKTIER_SERVER__PORT",
            "x",
            "server.port (TOKTIER_SERVER__PORT): must be a valid integer. "
            "Correct it (port to listen on; 0 takes a free one (it is logged)).",
        ),
        (
            "TOKTIER_MODELS__M__DEFAULT_CHAT_TEMPLATE_KWARGS",
            "{",
            "TOKTIER_MODELS__M__DEFAULT_CHAT_TEMPLATE_KWARGS: not valid JSON. Write a JSON list or object.",
        ),
        (
            "TOKTIER_MODELS__TOKENIZER",
            "x",
            "TOKTIER_MODELS__TOKENIZER: needs a name and a key. Write TOKTIER_MODELS__NAME__KEY.",
        ),
        (
            "TOKTIER_LOG",
            "x",
            "TOKTIER_LOG: names a table, not a setting. "
            "Add __ and a key: path, level, queue_lines, max_bytes, keep_files.",
        ),
        (
            "TOKTIER_LOG__LEVEL__X",
            "x",
            "TOKTIER_LOG__LEVEL__X: log.level is a value, not a table. Leave out what follows it.",
        ),
    ],
)
def test_a_wrong_variable_is_named_with_its_remedy(state: dict[str, str], variable: str, value: str, line: str) -> None:
    assert problems(None, CLI, {**state, variable: value}) == [line]


def test_unknown_keys_are_refused_with_place_and_suggestion(tmp_path: Path, state: dict[str, str]) -> None:
    path = write(
        tmp_path / "t.toml",
        '[server]\nprot = 1\n[upstreams.u]\nurl = "http://h"\nzzz = 1\n[models.m]\nupstream = "u"\n'
        'tokeniser = "x"\n[sesions]\n',
    )
    lines = problems(path, {}, state)
    assert f"server.prot ({path}): unknown setting. Did you mean port?" in lines
    assert f"models.m.tokeniser ({path}): unknown setting. Did you mean tokenizer?" in lines
    assert f"sesions ({path}): unknown setting. Did you mean sessions?" in lines
    assert any(
        line.startswith(f"upstreams.u.zzz ({path}): unknown setting. Known here: url, token_field") for line in lines
    )
    assert len(lines) == 4, "all problems at once"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('[upstreams.u]\nurl = "ftp://h"', "upstreams.u.url ({path}): not an http:// or https:// URL. Write it as"),
        ('[upstreams.u]\nurl = "http://me:pw@h"', "the URL holds credentials. Use api_key_file or api_key instead."),
        ('[upstreams.u]\nurl = "http://h:99999"', "the URL's port is not a number"),
        ('[upstreams.u]\nurl = "http:///x"', "the URL names no host."),
        ('[upstreams.u]\nurl = "http://h:1\\n/x"', "the URL holds white space or a control character."),
        ('[upstreams.u]\nurl = "http://h\\u2028:1"', "the URL holds white space or a control character."),
        ('[upstreams.u]\nurl = "http://h :1"', "the URL holds white space or a control character."),
        ('[upstreams.u]\nurl = "http://h?x=1"', "the URL has a query or fragment."),
        ("[upstreams.u]\n", "upstreams.u.url: missing. Add it (base URL, without /v1)."),
        ('[models.m]\nupstream = "gpu"', "models.m.upstream ({path}): no upstream 'gpu'. Known upstreams: none"),
        ('default_upstream = "x"', "default_upstream ({path}): no upstream 'x'."),
        (
            '[upstreams.u]\nurl="http://h"\n[models.a]\nupstream="u"\naliases=["b"]\n[models.b]\nupstream="u"',
            "models.a.aliases ({path}): 'b' is already a name of 'b'. Keep one of them.",
        ),
        (
            '[upstreams.u]\nurl="http://h"\n[models.a]\nupstream="u"\nserved_name="c"',
            "models.a.served_name ({path}): must be the model's name or one of its aliases",
        ),
        (
            '[upstreams.u]\nurl="http://h"\n[models.a]\nupstream="u"\nrevision="c"',
            "models.a.revision ({path}): has no meaning without a tokenizer.",
        ),
        (
            '[upstreams.u]\nurl="http://h"\n[models.a]\nupstream="u"\ntokenizer="embedded"\nrevision="c"',
            "models.a.revision ({path}): has no meaning for a local tokenizer.",
        ),
        (
            '[upstreams.u]\nurl="http://h"\n[models.a]\nupstream="u"\ncontrol_tokens="reject"',
            "models.a.control_tokens ({path}): reject needs a model with tokenizer.",
        ),
        (
            '[upstreams.u]\nurl="http://h"\n'
            '[models.a]\nupstream="u"\ntokenizer="embedded"\nmode="text"\ncontrol_tokens="reject"',
            'models.a.control_tokens ({path}): reject needs a model with mode "auto".',
        ),
        (
            '[upstreams.u]\nurl="http://h"\n[models.a]\nupstream="u"\nshadow_rate=0.5',
            "models.a.shadow_rate ({path}): has no meaning without a tokenizer.",
        ),
        ("[shadow]\nrate = 1.5", "shadow.rate ({path}): must be less than or equal to 1."),
        ('[models]\nm = "x"', "models.m ({path}): must be a table. Write it as [models.m]."),
        ("server = 3", "server ({path}): must be a table. Write it as [server]."),
        (
            '[auth]\nmode = "open"',
            "auth.mode ({path}): not one of the possible values. Choose 'none', 'passthrough' or",
        ),
        ('[auth]\nmode = "keys"', "auth.mode ({path}): keys needs auth.key_file."),
        (
            '[auth]\nmode = "keys"\nkey_file = "absent"',
            "no such file or directory. Correct the path or its permissions.",
        ),
        ('[auth]\nkey_file = "t.toml"', "auth.key_file ({path}): has no meaning with mode none."),
        ('[server]\ntls_cert = "t.toml"', "server.tls_cert ({path}): given without tls_key."),
        ('[server]\ntls_cert = "t.toml"\ntls_key = "t.toml"', "certificate and key cannot be loaded together."),
        ('[server]\ntls_cert = "no"\ntls_key = "t.toml"', "server.tls_cert ({path}): "),
        ("[server]\nport = 1\nport = 2", "{path}: not valid TOML ("),
        ("[sessions]\ntenant_share = 0", "sessions.tenant_share ({path}): must be greater than 0."),
        ('[auth]\nhmac_key = "short"', "auth.hmac_key ({path}): shorter than 16 bytes."),
        ('[log]\npath = "absent/x.log"', "log.path ({path}): "),
        ("[log]\nmax_bytes = 65536", "log.max_bytes ({path}): has no meaning without log.path."),
        ('[log]\npath = "x.log"\nmax_bytes = 65535', "log.max_bytes ({path}): below 65536 bytes,"),
        ('[log]\npath = "x.log"\nkeep_files = 0', "log.keep_files ({path}): must be greater than or equal to 1."),
        ('[auth]\nstate_dir = "t.toml/x"', "auth.state_dir ({path}): "),
    ],
)
def test_wrong_values_and_contradictions(tmp_path: Path, state: dict[str, str], text: str, part: str) -> None:
    path = write(tmp_path / "t.toml", text + "\n")
    environ = {} if "state_dir" in text else state
    lines = problems(path, {}, environ)
    assert any(part.format(path=path) in line for line in lines), lines


def test_no_error_repeats_a_secret(tmp_path: Path, state: dict[str, str]) -> None:
    path = write(
        tmp_path / "t.toml",
        '[auth]\nhmac_key = ["CANARY"]\n[upstreams.u]\nurl = "http://x:CANARY@h"\napi_key = {a = "CANARY"}\n',
    )
    lines = problems(path, {}, {**state, "TOKTIER_UPSTREAMS__U__API_KYE": "CANARY"})
    assert lines
    assert "CANARY" not in "\n".join(lines)
    environ = {**state}
    assert "CANARY" not in "\n".join(problems(path, {}, environ))


def test_secrets_are_not_printed_with_the_settings(state: dict[str, str]) -> None:
    environ = {**state, "TOKTIER_AUTH__HMAC_KEY": "CANARY" * 5, "TOKTIER_UPSTREAMS__DEFAULT__API_KEY": "CANARY"}
    settings = load(None, CLI, environ)
    assert settings.upstreams["default"].secret() == "CANARY"
    for shown in (repr(settings), str(settings), settings.model_dump_json(), repr(settings.model_dump())):
        assert "CANARY" not in shown
    assert isinstance(settings.auth.hmac_key, SecretStr)


def test_upstream_secret_from_a_file(tmp_path: Path, state: dict[str, str]) -> None:
    key = write(tmp_path / "key", "from-file\n")
    environ = {**state, "TOKTIER_UPSTREAMS__DEFAULT__API_KEY_FILE": str(key)}
    upstream = load(None, CLI, environ).upstreams["default"]
    assert upstream.secret() == "from-file"
    write(key, "changed")
    assert upstream.secret() == "changed"
    for content in (b"", b"two words", b"a\nb", b"\xff"):
        key.write_bytes(content)
        (line,) = problems(None, CLI, environ)
        assert line.startswith(
            "upstreams.default.api_key_file (TOKTIER_UPSTREAMS__DEFAULT__API_KEY_FILE): not one word"
        )
    write(key, "from-file")
    both = problems(None, CLI, {**environ, "TOKTIER_UPSTREAMS__DEFAULT__API_KEY": "x"})
    assert both == [
        "upstreams.default.api_key (TOKTIER_UPSTREAMS__DEFAULT__API_KEY): given beside api_key_file. Keep one of them."
    ]


def test_relative_paths_are_relative_to_the_file(tmp_path: Path, state: dict[str, str]) -> None:
    (tmp_path / "conf" / "tok").mkdir(parents=True)
    path = write(
        tmp_path / "conf" / "t.toml",
        '[log]\npath = "x.log"\n[upstreams.u]\nurl = "http://h"\n'
        '[models.a]\nupstream = "u"\ntokenizer = "tok"\nchat_template = "t.jinja"\n'
        '[models.b]\nupstream = "u"\ntokenizer = "Qwen/Qwen3-8B"\nrevision = "abc"\n'
        '[models.c]\nupstream = "u"\ntokenizer = "../later"\n'
        '[models.d]\nupstream = "u"\ntokenizer = "embedded"\n',
    )
    settings = load(path, {}, state)
    assert settings.log.path == tmp_path / "conf" / "x.log"
    assert settings.models["a"].tokenizer == str(tmp_path / "conf" / "tok")
    assert settings.models["a"].chat_template == tmp_path / "conf" / "t.jinja"
    assert settings.models["b"].tokenizer == "Qwen/Qwen3-8B"
    assert settings.models["c"].tokenizer == str(tmp_path / "conf" / "../later")
    assert settings.models["d"].tokenizer == "embedded"


def test_home_is_expanded_and_settings_are_immutable(state: dict[str, str]) -> None:
    settings = load(None, CLI, state)
    assert settings.server.cache_dir == Path("~/.cache/toktier").expanduser()
    with pytest.raises(ValidationError):
        settings.server.port = 1  # type: ignore[misc]


def test_v1_is_taken_off_the_upstream_url() -> None:
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        assert Settings(upstreams={"u": {"url": url}}).upstreams["u"].url == "http://h:1"
    assert Settings(upstreams={"u": {"url": "http://h/openai/v1"}}).upstreams["u"].url == "http://h/openai"


def test_tenant_share_is_whole_where_there_is_one_tenant() -> None:
    assert Settings().tenant_share == 1.0
    assert Settings(auth={"mode": "passthrough"}).tenant_share == 0.5


def test_unreadable_file_is_one_line(tmp_path: Path) -> None:
    assert problems(tmp_path / "absent.toml") == [
        f"{tmp_path / 'absent.toml'}: No such file or directory. Check --config."
    ]
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert problems(binary) == [f"{binary}: not UTF-8 text. Save it as UTF-8."]


def test_too_few_open_files_for_the_connections_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    settings = Settings(
        limits={"connections": 1000},
        upstreams={"a": {"url": "http://h", "max_connections": 500}},
        models={"m": {"upstream": "a"}},
    )
    for most, places in ((1500, ["limits.connections"]), (1600, []), (resource.RLIM_INFINITY, [])):
        monkeypatch.setattr(resource, "getrlimit", lambda _, most=most: (16, most))
        assert [problem.place for problem in warnings(settings)] == places


def test_warnings_name_what_is_probably_not_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.config_checks.OTHER_FILES", -1_000_000)  # whatever this machine allows
    settings = Settings(
        server={"host": "0.0.0.0"},
        upstreams={"a": {"url": "https://h", "verify_tls": False}, "b": {"url": "http://h"}},
        models={"m": {"upstream": "a", "tokenizer": "no/such-pinned"}},
    )
    places = {problem.place for problem in warnings(settings)}
    assert places == {"auth.mode", "default_upstream", "upstreams.b", "upstreams.a.verify_tls", "models.m.tokenizer"}
    assert [p.place for p in warnings(Settings())] == ["models"]
    quiet = Settings(
        server={"host": "::1"},
        upstreams={"a": {"url": "http://h"}},
        models={"m": {"upstream": "a", "tokenizer": "embedded"}},
    )
    assert warnings(quiet) == []
    (tmp_path / "file").write_text("")
    lost = quiet.model_copy(update={"auth": Auth(state_dir=tmp_path / "file" / "x", hmac_key=SecretStr("k" * 20))})
    assert [p.place for p in warnings(lost)] == ["auth.state_dir"]
    assert warnings(lost.model_copy(update={"shadow": Shadow(on_mismatch="report")})) == []


def test_configuration_file_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKTIER_CONFIG", raising=False)
    assert config_file(None) is None
    monkeypatch.setenv("TOKTIER_CONFIG", "/a.toml")
    assert config_file(None) == Path("/a.toml")
    assert config_file(Path("b.toml")) == Path("b.toml")


def test_an_encrypted_tls_key_is_refused_without_asking(tmp_path: Path, state: dict[str, str]) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -subj /CN=x -days 1 -passout pass:x -keyout {key} -out {cert}".split(),
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no openssl command")
    files = {"tls_cert": str(cert), "tls_key": str(key)}
    code = f"from proxy.config import *; load(None, {{'server': {files!r}}}, {state!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60
    )
    assert "certificate and key cannot be loaded together" in done.stderr


def test_only_the_configuration_reads_the_environment() -> None:
    root = Path(__file__).resolve().parents[2]
    reading = re.compile(r"""os\.environ(?!\["\w+"\] = )|os\.getenv""")  # a worker may set what its libraries read
    readers = {
        str(path.relative_to(root))
        for package in ("proxy", "toktier")
        for path in (root / package).rglob("*.py")
        if not path.name.startswith("embedded") and reading.search(path.read_text("utf-8"))
    }
    assert readers <= {"proxy/config.py"}, "the simulator is no part of the product"
