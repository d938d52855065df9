# asmil in a container; docs/install.md has the same steps, and how to build it for GPUs.
#   docker build -t asmil .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" asmil train cohort.csv --out runs/asmil
ARG BASE=ubuntu:24.04
FROM ${BASE}

# npm builds the page of the viewer; Triton (extra fused) compiles kernels with gcc and Python's headers when they are used
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv python3-dev gcc npm \
    && rm -rf /var/lib/apt/lists/*

ARG EXTRAS=viewer,hub
# where PyTorch comes from: its builds for CPUs are much smaller
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

COPY . /source
RUN python3 -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --extra-index-url "${TORCH_INDEX}" "/source[${EXTRAS}]" \
    && rm -rf /source

# the home is writable for everyone, since --user makes files of the host's user in /data
RUN useradd --create-home asmil && chmod 1777 /home/asmil
ENV HOME=/home/asmil
USER asmil
WORKDIR /data
ENTRYPOINT ["/venv/bin/asmil"]
CMD ["--help"]
