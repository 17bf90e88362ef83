"""`toktier check`: what a configuration will do, found out without serving.

Loads every tokenizer and template as the server does. Talks to an upstream only when asked to (`probe`). The report
names files, digests and reasons; no secret is part of it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

import aiohttp

from proxy.config import Model, Settings, Upstream
from proxy.config_checks import warnings
from proxy.gpu import Gpus
from proxy.loading import Loader
from proxy.registry import CannotLoad
from toktier import panics
from toktier.chunks import GpuPath
from toktier.reasons import BYPASS_HELP, GPU_HELP, Bypass, Gpu
from toktier.sessions import SessionStore
from toktier.tier import ModelTier

GPU_WAIT_S = 120.0
"""How long a tokenizer's GPU path may take to be made ready."""


class Exit(IntEnum):
    """Exit codes of `toktier check`; `toktier serve` ends with INVALID for the same configurations."""

    OK = 0
    DEGRADED = 1
    """Valid, but some model would be served as text against the configuration's wish, or an upstream did not answer."""
    INVALID = 2


@dataclass
class ModelReport:
    """One model. ``repair``: whether IDs will be sent, once the upstream passes its probe; if not, ``bypass`` says why
    all its requests go as text."""

    name: str
    aliases: list[str]
    upstream: str
    mode: str
    profile: str
    tokenizer: str | None
    repair: bool = False
    bypass: Bypass | None = None
    detail: str | None = None
    tokenizer_digest: str | None = None
    vocab_size: int | None = None
    window_engine: str | None = None
    window_refusal: str | None = None
    certified: bool | None = None
    certificate_digest: str | None = None
    certificate_refusal: str | None = None
    whole_below: int | None = None
    all_cores_from: int | None = None
    shortcuts_measured: bool | None = None
    """As in `toktier.shortcuts`."""
    template_digest: str | None = None
    parity: str | None = None
    """What the comparison with transformers found (`toktier.parity.Outcome`); ``parity_detail`` says it in words."""
    parity_detail: str | None = None
    load_s: float | None = None
    gpu: Gpu | None = None
    """What a long text meets on the GPU path; None where there is none."""
    gpu_from_chars: int | None = None
    """Characters from which on texts go to a GPU."""

    @property
    def degraded(self) -> bool:
        """Whether it does less than what the configuration asks for."""
        return self.mode == "auto" and self.tokenizer is not None and not self.repair


@dataclass
class UpstreamReport:
    """One upstream; what follows ``credential`` is known only after a probe."""

    name: str
    url: str
    token_field: str
    credential: str
    """Where the credential comes from: "configured", "from the client" (or "from the client, configured for probes") or
    "none"."""
    reachable: bool | None = None
    problem: str | None = None
    version: str | None = None
    models: list[str] | None = None


@dataclass
class Report:
    """Everything that `toktier check` prints."""

    listen: str
    auth_mode: str
    cache_salt: str
    log: str
    default_upstream: str | None
    models: list[ModelReport] = field(default_factory=list)
    upstreams: list[UpstreamReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    gpu: dict[str, Any] = field(default_factory=dict)
    """As ``gpu`` of ``GET /ready``."""
    gpu_problem: str | None = None
    """Set where a GPU is required and none works."""

    @property
    def exit_code(self) -> Exit:
        """OK, or DEGRADED. (INVALID is decided before there is a report.)"""
        bad = any(m.degraded for m in self.models) or any(u.reachable is False for u in self.upstreams)
        bad = bad or self.gpu_problem is not None
        return Exit.DEGRADED if bad else Exit.OK

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return {"exit_code": int(self.exit_code), **asdict(self)}


def inspect(settings: Settings, *, probe: bool = False) -> Report:
    """The report on a valid configuration. Loading a tokenizer takes seconds where no certificate is cached."""
    server = settings.server
    scheme = "https" if server.tls_cert is not None else "http"
    gpus = Gpus(settings.gpu)
    report = Report(
        listen=f"{scheme}://{f'[{server.host}]' if ':' in server.host else server.host}:{server.port}",
        auth_mode=settings.auth.mode,
        cache_salt="per tenant" if settings.auth.salt == "tenant" else "off",
        log=str(settings.log.path) if settings.log.path is not None else "standard output",
        default_upstream=settings.default_upstream,
        models=[_model(name, model, settings, gpus) for name, model in settings.models.items()],
        upstreams=[_upstream(name, upstream, settings) for name, upstream in settings.upstreams.items()],
        warnings=[str(problem) for problem in warnings(settings)],
    )
    report.gpu, report.gpu_problem = gpus.told(), gpus.degraded
    gpus.close()
    if probe:
        asyncio.run(_probe(settings, report))
    return report


def _model(name: str, model: Model, settings: Settings, gpus: Gpus) -> ModelReport:
    report = ModelReport(name, list(model.aliases), model.upstream, model.mode, model.profile, model.tokenizer)
    if model.mode == "text" or model.tokenizer is None:
        report.bypass = Bypass.TEXT_MODE_CONFIGURED
        report.detail = 'mode = "text"' if model.mode == "text" else "no tokenizer is set"
        return report
    start = time.perf_counter()
    try:
        with panics.unreported():
            loaded = Loader(gpus).load(name, model, settings.server, SessionStore(1 << 20, 1.0, 1.0))
    except CannotLoad as error:
        report.bypass, report.detail = error.reason, error.detail
        return report
    report.load_s = round(time.perf_counter() - start, 2)
    report.repair = True
    assert isinstance(loaded.tier, ModelTier)
    tokenizer, template = loaded.tier.tokenizer, loaded.tier.template
    report.tokenizer_digest, report.vocab_size = tokenizer.digest, loaded.vocab_size
    report.window_engine = f"{tokenizer.window.name} {tokenizer.window.version}"
    report.window_refusal = tokenizer.window_refusal
    report.template_digest = template.digest
    if loaded.parity is not None:
        report.parity, report.parity_detail = loaded.parity.outcome.value, loaded.parity.detail
    report.certified = tokenizer.certificate is not None
    if tokenizer.certificate is not None:
        report.certificate_digest = tokenizer.certificate.digest
        shortcuts = tokenizer.shortcuts
        report.whole_below, report.all_cores_from = shortcuts.whole_below, shortcuts.all_cores_from
        report.shortcuts_measured = shortcuts.measured
    else:
        report.certificate_refusal = str(tokenizer.refusal)
    if (gpu := loaded.tier.gpu) is not None:
        report.gpu = _settled(gpu)
        report.gpu_from_chars = gpu.from_chars
    return report


def _settled(gpu: GpuPath) -> Gpu:
    """What becomes of its GPU path, once that is known."""
    end = time.monotonic() + GPU_WAIT_S
    while (standing := gpu.standing) is Gpu.LOADING and time.monotonic() < end:
        time.sleep(0.05)
    return standing


def _upstream(name: str, upstream: Upstream, settings: Settings) -> UpstreamReport:
    own = upstream.api_key or upstream.api_key_file
    if settings.auth.mode == "passthrough":
        credential = "from the client, configured for probes" if own else "from the client"
    else:
        credential = "configured" if own else "none"
    return UpstreamReport(name, upstream.url, upstream.token_field, credential)


async def _probe(settings: Settings, report: Report) -> None:
    """Whether each upstream answers, and whether it serves the models. Sends no chat request."""
    await asyncio.gather(*(_probe_one(settings, upstream) for upstream in report.upstreams))
    for upstream in report.upstreams:
        for model in report.models:
            if model.upstream != upstream.name or upstream.models is None:
                continue
            missing = [n for n in (model.name, *model.aliases) if n not in upstream.models]
            if missing:
                names = ", ".join(missing)
                report.warnings.append(f"models.{model.name}: {upstream.name} does not list {names} as its models.")


async def _probe_one(settings: Settings, report: UpstreamReport) -> None:
    upstream = settings.upstreams[report.name]
    try:
        secret = upstream.secret()
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        timeout = aiohttp.ClientTimeout(total=30, sock_connect=upstream.connect_timeout_s, sock_read=10)
        connector = aiohttp.TCPConnector(ssl=upstream.verify_tls)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
            async with session.get(f"{upstream.url}/v1/models", allow_redirects=False) as reply:
                report.reachable = reply.status == 200
                if reply.status != 200:
                    report.problem = f"GET /v1/models answered {reply.status}"
                    return
                listed = (await reply.json(content_type=None)).get("data", [])
                report.models = [str(entry["id"]) for entry in listed]
            async with session.get(f"{upstream.url}/version", allow_redirects=False) as reply:
                if reply.status == 200:
                    report.version = str((await reply.json(content_type=None)).get("version"))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        report.reachable, report.problem = False, f"no answer ({type(error).__name__})"
    except (ValueError, AttributeError, KeyError, TypeError):
        report.problem = "the answer is not what an OpenAI-compatible server sends"
        report.reachable = False


def explain_gpu(model: ModelReport) -> str:
    """What a model has of the GPU path, for people."""
    if model.gpu is Gpu.USED:
        return f"texts of {model.gpu_from_chars:,} characters and more"
    return "" if model.gpu is None else f"no: {GPU_HELP[model.gpu]} ({model.gpu.value})"


def explain_bypass(model: ModelReport) -> str:
    """Why a model is served as text, for people."""
    if model.bypass is None:
        return ""
    return f"{BYPASS_HELP[model.bypass]} ({model.bypass.value})" + (f": {model.detail}" if model.detail else "")
