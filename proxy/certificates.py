"""The commands `toktier certify` and `toktier campaign`: from arguments to a printed report and an exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from proxy import logs
from proxy.certify import Exit, inspect
from proxy.config import EMBEDDED_TOKENIZER, Log
from toktier.campaign import corpus
from toktier.campaign.runner import Plan, ProcessLost, run
from toktier.errors import Refusal, UnusableFile
from toktier.tokenizer import EMBEDDED


@dataclass(frozen=True)
class Source:
    """The tokenizer that a command names, as `FrozenTokenizer.load` takes it."""

    name: str
    revision: str | None = None
    sidecar: Path | None = None

    @property
    def path(self) -> str | Path:
        return EMBEDDED if self.name == EMBEDDED_TOKENIZER else self.name


def certify(source: Source, texts: Sequence[Path], cache_dir: Path, *, as_json: bool) -> Exit:
    """Prints the report on a tokenizer, or one line on standard error where it cannot be read."""
    noise = logs.configure(Log(level="error"), stream=2)
    try:
        named = dict(zip(map(corpus.name_of, texts), corpus.read(texts), strict=True))
        named = named or {"a built-in sample": "".join(corpus.built_in())}
        report = inspect(source.path, named, revision=source.revision, sidecar=source.sidecar, cache_dir=cache_dir)
    except UnusableFile as error:
        return _unusable(error)
    finally:
        noise.close()
    if as_json:
        typer.echo(json.dumps(report.json(), indent=2))
    else:
        from proxy.certify_print import show

        show(report)
    return report.exit_code


def campaign(source: Source, texts: Sequence[Path], cache_dir: Path, plan: Plan, *, as_json: bool) -> Exit:
    """Runs a campaign and prints its report."""
    from proxy.campaign_print import bar, show

    noise = logs.configure(Log(level="error"), stream=2)
    try:
        real = (*corpus.built_in(), *corpus.read(texts))
        with bar(wanted=not as_json) as progress:
            report = run(
                source.path,
                plan,
                revision=source.revision,
                sidecar=source.sidecar,
                cache_dir=cache_dir,
                real=real,
                progress=progress,
            )
    except UnusableFile as error:
        return _unusable(error)
    except Refusal as refusal:
        typer.echo(f"toktier: no certificate: {refusal}", err=True)
        return Exit.REFUSED
    except ProcessLost as error:
        typer.echo(f"toktier: {error}", err=True)
        return Exit.UNUSABLE
    finally:
        noise.close()
    if as_json:
        typer.echo(json.dumps(report.json(), indent=2))
    else:
        show(report)
    if report.diverged:
        return Exit.DIVERGENCE
    return Exit.INTERRUPTED if report.ended == "interrupted" else Exit.OK


def _unusable(error: UnusableFile) -> Exit:
    typer.echo(f"toktier: {' '.join(str(error).split())}", err=True)
    return Exit.UNUSABLE
