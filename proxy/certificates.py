"""The commands `toktier certify` and `toktier campaign`: from arguments to a printed report and an exit code."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import typer

from proxy import logs
from proxy.certify import Exit, inspect
from proxy.certify_words import pointed_at
from proxy.config import EMBEDDED_TOKENIZER, Log
from proxy.gpu import ready_path
from toktier import panics
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
    """Prints the report on a tokenizer, or one line on standard error where it cannot be read: with ``as_json``
    an object in place of the report."""
    noise = logs.configure(Log(level="error"), stream=2)
    try:
        named = dict(zip(map(corpus.name_of, texts), corpus.read(texts), strict=True))
        named = named or {"a built-in sample": "".join(corpus.built_in())}
        with panics.unreported():
            report = inspect(source.path, named, revision=source.revision, sidecar=source.sidecar, cache_dir=cache_dir)
    except UnusableFile as error:
        return _unusable(error, as_json=as_json)
    finally:
        noise.close()
    if as_json:
        typer.echo(json.dumps(report.json(), indent=2))
    else:
        from proxy.certify_print import show

        show(report)
    return report.exit_code


def campaign(
    source: Source, texts: Sequence[Path], cache_dir: Path, plan: Plan, *, as_json: bool, gpu: bool = False
) -> Exit:
    """Runs a campaign and prints its report, also where Ctrl-C or SIGTERM ends it. ``gpu``: ropes ask a GPU first."""
    with _terminable() as terminated:
        code = _campaign(source, texts, cache_dir, plan, terminated, as_json=as_json, gpu=gpu)
    return Exit.TERMINATED if terminated and code is not Exit.DIVERGENCE else code


def _campaign(
    source: Source,
    texts: Sequence[Path],
    cache_dir: Path,
    plan: Plan,
    terminated: Sequence[int],
    *,
    as_json: bool,
    gpu: bool,
) -> Exit:
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
                gpu=partial(ready_path, cache_dir=cache_dir) if gpu else None,
            )
    except UnusableFile as error:
        return _unusable(error, as_json=as_json)
    except Refusal as refusal:
        return _ended(Exit.REFUSED, f"no certificate: {refusal}", *pointed_at(*refusal.excerpt()), as_json=as_json)
    except KeyboardInterrupt:
        return _ended(Exit.INTERRUPTED, "interrupted before anything was tried", as_json=as_json)
    except ProcessLost as error:
        if terminated:  # SIGTERM went to all processes of the group, and they were the first
            return Exit.UNUSABLE
        return _ended(Exit.UNUSABLE, str(error), as_json=as_json)
    finally:
        noise.close()
    if as_json:
        typer.echo(json.dumps(report.json(), indent=2))
    else:
        show(report)
    if report.diverged:
        return Exit.DIVERGENCE
    return Exit.INTERRUPTED if report.ended == "interrupted" else Exit.OK


@contextmanager
def _terminable() -> Iterator[list[int]]:
    """SIGTERM does what Ctrl-C does; the list then holds it. A second one ends the process."""
    came: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)


def _unusable(error: UnusableFile, *, as_json: bool) -> Exit:
    return _ended(Exit.UNUSABLE, " ".join(str(error).split()), as_json=as_json)


def _ended(code: Exit, problem: str, *more: str, as_json: bool) -> Exit:
    """Says why there is no report: as JSON in its place, or on standard error, with ``more`` lines."""
    if as_json:
        typer.echo(json.dumps({"exit_code": int(code), "problem": problem}, indent=2))
    else:
        typer.echo("\n".join([f"toktier: {problem}", *more]), err=True)
    return code
