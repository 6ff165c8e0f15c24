# One image for the server, the sites and the commands: docs/deployment.md.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}

# A requirement, or the address of a wheel: one for CPUs makes the image a third of the size.
ARG TORCH=torch
# Where the lock's versions of torch and torchvision are taken from: PyTorch's own index has some for
# CPUs, https://download.pytorch.org/whl/cpu. Empty: from the lock, for CUDA.
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

WORKDIR /app
COPY pyproject.toml requirements.lock ./
# From the lock; with another torch, the lock's versions of everything else.
RUN if [ "${TORCH}${TORCH_INDEX}" = torch ]; then pip install --require-hashes -r requirements.lock; else \
    if [ -z "${TORCH_INDEX}" ]; then pip install "${TORCH}"; else \
        pip install --index-url "${TORCH_INDEX}" \
            $(sed -nE 's/^(torch|torchvision)(==[^ ;]*).*/\1\2/p' requirements.lock); fi \
    && sed -n 's/^\([a-z0-9][^ ]*==[^ ;]*\).*/\1/p' requirements.lock \
        | grep -vE '^(torch|torchvision|triton|nvidia-|cuda-)' > /tmp/pins.txt \
    && python -c "import importlib.metadata as m; print('torch==' + m.version('torch'))" >> /tmp/pins.txt \
    && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > /tmp/requirements.txt \
    && pip install -c /tmp/pins.txt -r /tmp/requirements.txt \
    && rm /tmp/pins.txt /tmp/requirements.txt; fi

COPY README.md LICENSE hatch_build.py ./
COPY common ./common
COPY client_app ./client_app
COPY server_app ./server_app
COPY deploy ./deploy
COPY coterie ./coterie
COPY flower_app ./flower_app
COPY docs/three-sites ./docs/three-sites
RUN pip install --no-deps -e . && python -m compileall -q common client_app server_app deploy coterie

# Volumes take their owner from these folders, so that nothing has to run as root.
ARG UID=10001
RUN useradd --uid "${UID}" --create-home coterie \
    && for folder in /site /public /provisioned /server /authority /data /runs \
           /out/authority /out/server /out/sites/north /out/sites/east /out/sites/south \
           /demo/north /demo/east /demo/south; do \
           install -d -o coterie -g coterie "${folder}"; done \
    && chown coterie:coterie /out /out/sites /demo
USER coterie

ENTRYPOINT ["coterie"]
CMD ["--help"]
