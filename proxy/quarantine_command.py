"""The commands `toktier quarantine list` and `lift`: on the state folder, whether or not a proxy runs.

A proxy that runs sees a lift within two seconds and logs it. So does the command, where `log.path` names a file that is
there: else a lift while no proxy runs would leave the mismatch open in `toktier audit`.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import structlog
import typer

from proxy import logs
from proxy.config import Log, Settings
from proxy.shadow import quarantine_file
from toktier.quarantine import Entry, Quarantine
from toktier.reasons import Path


def show(settings: Settings, *, as_json: bool) -> int:
    """Prints what is in quarantine. 1 where there is anything."""
    quarantine = _opened(settings)
    entries = quarantine.entries()
    if as_json:
        found = {
            "file": str(quarantine_file(settings)),
            "damaged_since": quarantine.everything,
            "entries": [asdict(entry) for entry in entries],
        }
        typer.echo(json.dumps(found, indent=2))
    else:
        _say_where(settings)
        if quarantine.everything is not None:
            typer.echo("the file was damaged: every request is encoded by the reference until all is lifted")
        for entry in entries:
            typer.echo(_line(entry))
        if not quarantine:
            typer.echo("nothing is in quarantine")
    return int(bool(quarantine))


def lift(settings: Settings, tokenizer: str | None, path: str | None, *, as_json: bool) -> int:
    """Lifts what the options name, all without them. 1 where that is nothing."""
    try:
        wanted = None if path is None else Path(path)
    except ValueError:
        raise typer.BadParameter(f"one of {', '.join(Path)}", param_hint="--path") from None
    quarantine = _opened(settings)
    damaged = quarantine.everything is not None
    digest = None if tokenizer is None else _completed(tokenizer, quarantine)
    try:
        # Where there is nothing, no folder is made: it would belong to whoever asked.
        lifted = quarantine.lift(digest, wanted) if quarantine else []
    except OSError as error:
        typer.echo(f"toktier: {quarantine_file(settings)} cannot be written ({error}); nothing was lifted", err=True)
        return 1
    repaired = damaged and quarantine.everything is None
    _log(settings, lifted, repaired)
    if as_json:
        done = {
            "file": str(quarantine_file(settings)),
            "lifted": [asdict(entry) for entry in lifted],
            "repaired": repaired,
        }
        typer.echo(json.dumps(done, indent=2))
    else:
        _say_where(settings)
        for entry in lifted:
            typer.echo(f"lifted: {_line(entry)}")
        if repaired:
            typer.echo("the damaged file was replaced by an empty one")
        if not lifted and not repaired:
            typer.echo("nothing was lifted")
    return int(not lifted and not repaired)


def _say_where(settings: Settings) -> None:
    """The file that was read: without the server's own configuration it may be another."""
    file = quarantine_file(settings)
    typer.echo(f"file: {file}" if file.exists() else f"file: {file} (there is none)")


def _opened(settings: Settings) -> Quarantine:
    noise = logs.configure(Log(level="error"), stream=2)
    try:
        return Quarantine(quarantine_file(settings))
    finally:
        noise.close()


def _completed(start: str, quarantine: Quarantine) -> str:
    digests = {entry.tokenizer_digest for entry in quarantine.entries() if entry.tokenizer_digest.startswith(start)}
    if len(digests) > 1:
        raise typer.BadParameter(f"{len(digests)} tokenizers begin like that", param_hint="--tokenizer")
    return digests.pop() if digests else start


def _line(entry: Entry) -> str:
    engines = f" ({entry.versions})" if entry.versions else ""
    stale = "  stale: from an older TokTier, counts for this path of every tokenizer" if entry.stale else ""
    return (
        f"{entry.tokenizer_digest}  path {entry.path.value}  level {entry.level.value}  since {entry.since}  "
        f"model {entry.model}  found by {entry.source.value}  {entry.count} mismatch{'es' if entry.count != 1 else ''}"
        f"{engines}{stale}"
    )


def _log(settings: Settings, lifted: list[Entry], repaired: bool) -> None:
    path = settings.log.path
    if path is None or not path.exists():  # a file that is made here might not be the proxy's to write
        return
    written = logs.configure(Log(path=path))
    try:
        log = structlog.get_logger("toktier.quarantine")
        for entry in lifted:
            named = {
                "tokenizer_digest": entry.tokenizer_digest,
                "path": entry.path.value,
                "quarantine_level": entry.level.value,
            }
            log.warning("quarantine_lifted", **named, by="command")
        if repaired:
            log.warning("quarantine_lifted", tokenizer_digest=None, path=None, quarantine_level=None, by="command")
    finally:
        written.close()
