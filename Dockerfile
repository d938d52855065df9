# asmil in a container. The steps are those of docs/install.md.
#   docker build -t asmil .                                       for CPUs
#   docker build -t asmil --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 --build-arg EXTRAS=viewer,hub,fused .    for GPUs
#   docker run --rm -v "$PWD:/data" asmil train cohort.csv --out runs/asmil
ARG BASE=ubuntu:24.04
FROM ${BASE}

ARG EXTRAS=viewer,hub
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv npm \
    && rm -rf /var/lib/apt/lists/*

COPY . /source
RUN python3 -m venv /venv \
    && /venv/bin/pip install --no-cache-dir "/source[${EXTRAS}]" \
    && rm -rf /source

RUN useradd --create-home asmil
USER asmil
WORKDIR /data
ENTRYPOINT ["/venv/bin/asmil"]
CMD ["--help"]
