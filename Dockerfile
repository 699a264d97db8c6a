# The gateway alone: no engine, no compiler, no pip, no root. All that it is made of is pinned by hash: the base (Docker
# Official Images' python:3.11-slim-bookworm of 19 September 2026, Python 3.11.16, for every platform that they build)
# and the packages (requirements.lock, which `make lock` writes). Another base: --build-arg PYTHON_IMAGE=...@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv /fairlead && \
    /fairlead/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY policies policies
COPY backends backends
COPY gateway gateway
RUN /fairlead/bin/pip install --no-cache-dir --no-deps --no-build-isolation . && \
    /fairlead/bin/pip uninstall --yes setuptools pip

FROM ${PYTHON_IMAGE}
COPY --from=build /fairlead /fairlead
USER 65532:65532
EXPOSE 8080
# In a container "localhost" would be the container itself.
ENV FAIRLEAD_LISTEN__HOST=0.0.0.0
ENTRYPOINT ["/fairlead/bin/fairlead"]
CMD ["serve"]
