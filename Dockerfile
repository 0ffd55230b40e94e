# The service as an image: `docker run --stop-timeout 30 -v /path/to:/data:ro -p 8000:8000 towers --bundle /data/bundle`. The
# folder that holds the bundle is mounted (and that of the keys): of a bundle mounted alone no replacement would be seen. A
# stop may take linger_s and graceful_timeout_s, 11 s; Docker kills after 10 s unless told otherwise.
# TOWERS_PORT and TOWERS_HOST are options of `towers serve`. Set another port by `-e TOWERS_PORT=…`, not by `--port`, because the
# health check reads it, too. Its start period is the time that a large bundle may take to be read.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
WORKDIR /src
RUN python3 -m venv /opt/towers
COPY requirements.lock ./
RUN /opt/towers/bin/python -m pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY towers towers
COPY serving serving
COPY pipelines pipelines
RUN /opt/towers/bin/python -m pip install --no-cache-dir --no-build-isolation --no-deps .

FROM ${BASE_IMAGE}
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin towers
COPY --from=build /opt/towers /opt/towers
# The user has no home: for matplotlib of `towers report` and `daily`, which warns where it finds no place.
ENV MPLCONFIGDIR=/tmp/matplotlib
ENV PATH=/opt/towers/bin:$PATH PYTHONUNBUFFERED=1 TOWERS_HOST=0.0.0.0 TOWERS_PORT=8000
USER 10001
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=600s \
    CMD ["python", "-c", "import os; from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open(f'http://127.0.0.1:{os.environ[\"TOWERS_PORT\"]}/healthz', timeout=2)"]
ENTRYPOINT ["towers", "serve", "--bundle", "/bundle"]
