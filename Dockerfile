# The gateway alone: no engine, no compiler, no pip, no root. All that it is made of is pinned by hash: the base (Docker
# Official Images' python:3.11-slim-bookworm of 19 September 2026, Python 3.11.16, for every platform that they build),
# the packages (requirements.lock, which `make lock` writes), and what fairlead is compiled by: the same Python with
# Debian's gcc (python:3.11-bookworm of the same day), and mypyc (compile.lock). Others: --build-arg
# PYTHON_IMAGE=...@sha256:... and COMPILER_IMAGE=...@sha256:..., of the same Python and the same Debian.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
ARG COMPILER_IMAGE=python:3.11-bookworm@sha256:b99029c95d3d37fb1e4e76d287f7984373dca77c665885986e31b2c95260c13c

FROM ${COMPILER_IMAGE} AS build
WORKDIR /src
COPY requirements.lock compile.lock ./
RUN python -m venv /fairlead && \
    /fairlead/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock && \
    /fairlead/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r compile.lock --target /compiler
COPY pyproject.toml setup.py README.md LICENSE ./
COPY policies policies
COPY backends backends
COPY gateway gateway
RUN FAIRLEAD_COMPILE=1 PYTHONPATH=/compiler \
    /fairlead/bin/pip install --no-cache-dir --no-deps --no-build-isolation . && \
    /fairlead/bin/pip uninstall --yes setuptools pip

FROM ${PYTHON_IMAGE}
COPY --from=build /fairlead /fairlead
USER 65532:65532
EXPOSE 8080
# In a container "localhost" would be the container itself.
ENV FAIRLEAD_LISTEN__HOST=0.0.0.0
ENTRYPOINT ["/fairlead/bin/fairlead"]
CMD ["serve"]
