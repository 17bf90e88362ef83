"""The command `toktier`. Exit codes: 0 done, 1 degraded or failed while running, 2 the configuration is wrong.

`certify` and `campaign` also end with 3: the tokenizer has no certificate. All end with 74 where standard output takes
no more (`proxy.standard_output`)."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from proxy import standard_output
from proxy.config import ConfigError, Log, Settings, config_file, load
from proxy.config_sources import Problem

app = typer.Typer(
    name="toktier",
    help="TokTier: an OpenAI-compatible proxy that keeps each conversation's token IDs and repairs them exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a pretty traceback shows local variables, secrets among them
    context_settings={"help_option_names": ["-h", "--help"]},
)

ONLY_UPSTREAM = "default"
"""Name of the upstream that --upstream makes."""

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file (TOML); else what TOKTIER_CONFIG names."),
]
UpstreamOption = Annotated[str | None, typer.Option("--upstream", help="Base URL of the inference engine.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="The model's name, as clients send it.")]
TokenizerOption = Annotated[
    str | None,
    typer.Option("--tokenizer", help="Folder, tokenizer.json, hub id, or 'embedded' (Qwen3). Without: text mode."),
]
RevisionOption = Annotated[str | None, typer.Option("--revision", help="Commit of the tokenizer's hub id.")]
TemplateOption = Annotated[
    str | None, typer.Option("--chat-template", help="Jinja file that the engine was started with.")
]
FieldOption = Annotated[str | None, typer.Option("--token-field", help="Where IDs go: vllm, sglang, trtllm or dynamo.")]
HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
PortOption = Annotated[str | None, typer.Option("--port", help="Port to listen on; 0 takes a free one.")]
LogFileOption = Annotated[str | None, typer.Option("--log-file", help="File for the log instead of standard output.")]
LogLevelOption = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]


def _options(
    upstream: str | None,
    model: str | None,
    tokenizer: str | None,
    revision: str | None,
    chat_template: str | None,
    token_field: str | None,
    host: str | None,
    port: str | None,
    log_file: str | None,
    log_level: str | None,
) -> dict[str, Any]:
    """The options that were given, as a tree like the configuration file's."""
    about_model = {"tokenizer": tokenizer, "revision": revision, "chat_template": chat_template}
    given = {key: value for key, value in about_model.items() if value is not None}
    if model is None and given:
        raise typer.BadParameter("say which model it is for: --model NAME", param_hint=f"--{next(iter(given))}")
    tree: dict[str, Any] = {}
    if upstream is not None:
        tree["upstreams"] = {ONLY_UPSTREAM: {"url": upstream}}
        if model is not None:
            given["upstream"] = ONLY_UPSTREAM
    if token_field is not None:
        if upstream is None:
            raise typer.BadParameter("it belongs to --upstream", param_hint="--token-field")
        tree["upstreams"][ONLY_UPSTREAM]["token_field"] = token_field
    if model is not None:
        tree["models"] = {model: given}
    for section, key, value in (
        ("server", "host", host),
        ("server", "port", port),
        ("log", "path", log_file),
        ("log", "level", log_level),
    ):
        if value is not None:
            tree.setdefault(section, {})[key] = value
    return tree


def _loaded(config: Path | None, options: dict[str, Any]) -> Settings:
    """The settings, fit to serve with. Raises `ConfigError`."""
    settings = load(config_file(config), options)
    if not settings.upstreams:
        raise ConfigError(
            [Problem("upstreams", "none is configured", "give --upstream URL --model NAME, or --config FILE")]
        )
    return settings


def _load_or_exit(
    config: Path | None, options: dict[str, Any], *, serves: bool = True, as_json: bool = False
) -> Settings:
    try:
        return _loaded(config, options) if serves else load(config_file(config), options)
    except ConfigError as error:
        if as_json:
            problems = [{"place": p.place, "problem": p.problem, "remedy": p.remedy} for p in error.problems]
            typer.echo(json.dumps({"exit_code": 2, "problems": problems}, indent=2))
        else:
            for problem in error.problems:
                typer.echo(f"toktier: {problem}", err=True)
        raise typer.Exit(2) from None


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show_version:
        typer.echo(f"toktier {version('toktier-proxy')}")
        raise typer.Exit


@app.command()
def serve(
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    model: ModelOption = None,
    tokenizer: TokenizerOption = None,
    revision: RevisionOption = None,
    chat_template: TemplateOption = None,
    token_field: FieldOption = None,
    host: HostOption = None,
    port: PortOption = None,
    log_file: LogFileOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """Serve. Options go before TOKTIER_* variables, and those before the file."""
    options = _options(
        upstream, model, tokenizer, revision, chat_template, token_field, host, port, log_file, log_level
    )
    settings = _load_or_exit(config, options)
    from proxy.serve import run

    code = run(settings, lambda: load(config_file(config), options))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a tokenizer that is still being loaded cannot be interrupted, and would be waited for


@app.command()
def check(
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    model: ModelOption = None,
    tokenizer: TokenizerOption = None,
    revision: RevisionOption = None,
    chat_template: TemplateOption = None,
    token_field: FieldOption = None,
    host: HostOption = None,
    port: PortOption = None,
    log_file: LogFileOption = None,
    log_level: LogLevelOption = None,
    probe: Annotated[bool, typer.Option("--probe", help="Also ask the upstreams whether they are there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a configuration will do, without serving. Exit code 0: all as configured; 1: degraded; 2: invalid."""
    options = _options(
        upstream, model, tokenizer, revision, chat_template, token_field, host, port, log_file, log_level
    )
    settings = _load_or_exit(config, options, as_json=as_json)
    from proxy import logs
    from proxy.check import inspect

    noise = logs.configure(Log(level="warning"), stream=2)  # the report alone is standard output
    report = inspect(settings, probe=probe)
    noise.close()
    if as_json:
        typer.echo(json.dumps(report.json(), indent=2))
    else:
        from proxy.check_print import show

        show(report)
    raise typer.Exit(int(report.exit_code))


@app.command()
def embedded(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on.")] = 8000,
    model: Annotated[str, typer.Option("--model", help="Name of the model that it plays.")] = "toktier-demo",
    script: Annotated[Path | None, typer.Option("--script", help="JSON file with scripted replies.")] = None,
) -> None:
    """Start the embedded engine: a simulator with vLLM's chat contract, for trying TokTier without a GPU."""
    from proxy.embedded import run

    run(host=host, port=port, script=script, model=model)


TokenizerArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="Folder, tokenizer.json, rank file (also .xz), hub id, or 'embedded'.")
]
SidecarOption = Annotated[
    Path | None, typer.Option("--sidecar", help="Pattern and special tokens of a rank file, if not beside it.")
]
TextsOption = Annotated[list[Path] | None, typer.Option("--text", help="UTF-8 text to look at; may be repeated.")]


@app.command()
def certify(
    path: TokenizerArgument,
    text: TextsOption = None,
    revision: RevisionOption = None,
    sidecar: SidecarOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say where a tokenizer's texts can be cut, and why. Exit code 0: certified; 3: refused; 2: unusable file."""
    from proxy import certificates

    source = certificates.Source(path, revision, sidecar)
    raise typer.Exit(certificates.certify(source, text or [], _cache_dir(as_json=as_json), as_json=as_json))


@app.command()
def campaign(
    path: TokenizerArgument,
    cases: Annotated[int, typer.Option("--cases", min=0, help="Cuts to check.")] = 1_000_000,
    rope_ops: Annotated[int, typer.Option("--rope-ops", min=0, help="Operations on ropes to check.")] = 100_000,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0, help="Longest time; default none.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed tries the same texts.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=0, max=512, help="Processes; 0: one a core.")] = 0,
    plant: Annotated[bool, typer.Option("--plant", help="Plant faults instead, each of which must be found.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="Ropes encode on the first GPU; one process.")] = False,
    text: TextsOption = None,
    revision: RevisionOption = None,
    sidecar: SidecarOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare cuts and ropes with the reference, at length. Exit code 0: equal; 1: divergence; 2, 3: as certify."""
    from proxy import certificates
    from toktier.campaign.runner import PLANTS, Plan

    source = certificates.Source(path, revision, sidecar)
    plan = Plan(cases, rope_ops, seconds, seed, 1 if gpu else jobs, plants=PLANTS if plant else 0)
    cache_dir = _cache_dir(as_json=as_json)
    raise typer.Exit(certificates.campaign(source, text or [], cache_dir, plan, as_json=as_json, gpu=gpu))


@app.command()
def template(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="Jinja file, tokenizer_config.json, a tokenizer's folder, or 'embedded'."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """Say whether a chat template is rendered incrementally, and how. Exit code 0: it is; 1: not; 2: unusable file."""
    from proxy import template_print
    from toktier.errors import UnusableFile

    try:
        told = template_print.report(path)
    except UnusableFile as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    typer.echo(json.dumps(told, ensure_ascii=False, indent=1) if as_json else template_print.text(told))
    raise typer.Exit(any(one["folds"] == "no" for one in told))


@app.command()
def audit(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG...", help="Log files, also rotated and gzip-ed, in any order; '-': stdin."),
    ],
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="Count from an ISO time (UTC) or age: 30m, 2h, 7d.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with plots to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Summarise the structured log. Exit code 0; 1: a mismatch is not resolved; 2: unusable input."""
    from proxy.audit_report import command

    raise typer.Exit(command.audit(logs, since, html, as_json=as_json))


quarantine = typer.Typer(
    name="quarantine",
    help="What is not trusted after a mismatch, and trusting it again. It works whether or not the proxy runs.",
    no_args_is_help=True,
)
app.add_typer(quarantine)


@quarantine.command("list")
def list_quarantine(
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is in quarantine. Exit code 0: nothing; 1: something; 2: the configuration is invalid."""
    from proxy import quarantine_command

    settings = _load_or_exit(config, {}, serves=False, as_json=as_json)
    raise typer.Exit(quarantine_command.show(settings, as_json=as_json))


@quarantine.command("lift")
def lift_quarantine(
    config: ConfigOption = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", metavar="DIGEST", help="Only this tokenizer; its digest may be cut short."),
    ] = None,
    path: Annotated[str | None, typer.Option("--path", help="Only this path: init, append, edit ...")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Trust again, all or what the options name. Exit code 0: done; 1: nothing was lifted; 2: wrong options."""
    from proxy import quarantine_command

    settings = _load_or_exit(config, {}, serves=False, as_json=as_json)
    raise typer.Exit(quarantine_command.lift(settings, tokenizer, path, as_json=as_json))


def _cache_dir(*, as_json: bool) -> Path:
    """Where certificates and verdicts are kept, by the configuration's own rules."""
    return _load_or_exit(None, {}, serves=False, as_json=as_json).server.cache_dir


def main() -> None:
    """Entry point of the command."""
    standard_output.guard()
    try:
        app()
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    main()
