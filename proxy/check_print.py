"""The report of `toktier check` for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxy.check import ModelReport, Report, explain_bypass, explain_gpu


def show(report: Report, console: Console | None = None) -> None:
    """Prints the report to standard output."""
    out = console or Console(highlight=False)
    out.print(f"listens on      {escape(report.listen)}")
    out.print(f"clients         auth mode {report.auth_mode}, cache salt {report.cache_salt}")
    out.print(f"log             {escape(report.log)}")
    out.print(f"no model named  {escape(report.default_upstream or '404')}")
    out.print(f"GPU             {escape(_gpu(report))}\n", soft_wrap=True)
    upstreams = Table("upstream", "url", "IDs go to", "credential", "answer", box=None, pad_edge=False)
    for upstream in report.upstreams:
        answer = "not asked (--probe)"
        if upstream.reachable:
            answer = f"yes, version {upstream.version}" if upstream.version else "yes"
        elif upstream.reachable is False:
            answer = f"[red]no[/]: {escape(upstream.problem or '')}"
        upstreams.add_row(
            escape(upstream.name), escape(upstream.url), upstream.token_field, upstream.credential, answer
        )
    out.print(upstreams)
    for model in report.models:
        out.print()
        _model(model, out)
    for warning in report.warnings:
        out.print(f"\n[yellow]warning[/] {escape(warning)}", soft_wrap=True)
    out.print(f"\n{'degraded: see above' if report.exit_code else 'ok'}")


def _gpu(report: Report) -> str:
    gpu = report.gpu
    told = [f"{one['device']} {one['name'] or ''} {one['state']}" for one in gpu.get("devices", ())]
    told += [f"{one['help']} ({one['reason']})" for one in (gpu, *gpu.get("devices", ())) if "reason" in one]
    return ", ".join([gpu.get("mode", ""), *told])


def _model(model: ModelReport, out: Console) -> None:
    state = "[green]repair[/]" if model.repair else ("[red]text[/]" if model.degraded else "text")
    names = ", ".join([model.name, *model.aliases])
    out.print(f"model {escape(names)} on {escape(model.upstream)}: {state}", soft_wrap=True)
    lines = []
    if model.bypass is not None:
        lines.append(("why text", explain_bypass(model)))
    if model.tokenizer is not None:
        lines.append(("tokenizer", model.tokenizer))
    if model.tokenizer_digest is not None:
        size = f"{model.vocab_size} IDs, loaded in {model.load_s} s"
        lines.append(("digest", f"{model.tokenizer_digest[:16]} ({size})"))
        certificate = f"yes, {(model.certificate_digest or '')[:16]}"
        if not model.certified:
            certificate = f"no, so every change is a full encode: {model.certificate_refusal}"
        lines.append(("certificate", certificate))
        refusal = f" ({model.window_refusal})" if model.window_refusal else ""
        lines.append(("encoder", f"{model.window_engine}{refusal}"))
    if model.whole_below is not None:
        where = "measured here" if model.shortcuts_measured else "defaults"
        ways = f"below {model.whole_below:,} characters the whole text, from {model.all_cores_from:,} on on all cores"
        lines.append(("short cuts", f"{ways} ({where})"))
    if model.gpu is not None:
        lines.append(("GPU", explain_gpu(model)))
    if model.parity is not None:
        lines.append(("parity", f"{model.parity_detail} ({model.parity})"))
    if model.template_digest is not None:
        lines.append(("template", f"{model.template_digest[:16]}, profile {model.profile}"))
    for label, text in lines:
        out.print(f"  {label:<12}{escape(text)}", soft_wrap=True)
