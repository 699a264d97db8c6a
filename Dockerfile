# The gateway alone: no engine, no compiler, no root.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY policies policies
COPY backends backends
COPY gateway gateway
RUN python -m venv /fairlead && /fairlead/bin/pip install --no-cache-dir -c constraints.txt .

FROM python:3.11-slim
COPY --from=build /fairlead /fairlead
USER 65532:65532
EXPOSE 8080
# In a container "localhost" would be the container itself.
ENV FAIRLEAD_LISTEN__HOST=0.0.0.0
ENTRYPOINT ["/fairlead/bin/fairlead"]
CMD ["serve"]
