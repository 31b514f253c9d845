# kmifqe on the processor.
#
#   docker build --file docker/cpu.Dockerfile --tag kmifqe .
#   docker run --rm --volume "$PWD:/work" --user "$(id -u):$(id -g)" kmifqe example
#
# EXTRAS names optional parts of pyproject.toml: --build-arg EXTRAS=parquet,onnx. None of those below pulls PyTorch.
FROM python:3.13-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim-trixie
ARG EXTRAS=parquet,hub,onnx
# The wheel is mounted, not copied: it stays in no layer. It has no version to pin. A build with PyTorch in it fails.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    wheel=$(echo /wheels/*.whl) \
    && pip install --no-cache-dir "${wheel}[${EXTRAS}]" \
    && python -c "from importlib.util import find_spec; assert find_spec('torch') is None" \
    && useradd --create-home --uid 1000 kmifqe \
    && install --directory --owner kmifqe --group kmifqe /work
USER 1000
# Logs and compiled programs are kept in the home, which must be writable for any --user.
ENV HOME=/tmp \
    MPLBACKEND=Agg
WORKDIR /work
ENTRYPOINT ["kmifqe"]
CMD ["--help"]
