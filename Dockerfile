# A slim, non-root image. `--build-arg EXTRAS=demo` adds what the embedded engine needs (transformers, no torch).
FROM python:3.12-slim AS build
ARG EXTRAS=""
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY toktier/ toktier/
COPY proxy/ proxy/
RUN python -m pip wheel --no-cache-dir --wheel-dir /wheels --constraint constraints.txt ".${EXTRAS:+[${EXTRAS}]}"

FROM python:3.12-slim
ARG EXTRAS=""
# The wheels are the ones built above, at the constrained versions.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python -m pip install --no-cache-dir --no-index --find-links=/wheels "toktier-proxy${EXTRAS:+[${EXTRAS}]}" \
    && useradd --system --uid 10001 --create-home --home-dir /var/lib/toktier toktier
USER 10001
WORKDIR /var/lib/toktier
# Listen on every interface of the container; keep the HMAC key and caches on the volume.
ENV TOKTIER_SERVER__HOST=0.0.0.0 \
    TOKTIER_SERVER__PORT=8080 \
    TOKTIER_AUTH__STATE_DIR=/var/lib/toktier/state \
    HF_HOME=/var/lib/toktier/hub
VOLUME ["/var/lib/toktier"]
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=2).read()"]
ENTRYPOINT ["toktier"]
CMD ["serve"]
