# syntax=docker/dockerfile:1
# gpudiag without a framework: analyses traces, shows machines, reports. To profile a job, install gpudiag in the job's own
# image instead (pip install gpudiag), because the job's interpreter must find it.
#
#     docker build -t gpudiag .
#     docker run --rm -v "$PWD:/data:ro" gpudiag analyze traces/
#     docker run --rm --gpus all gpudiag topology
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
ARG SOURCE_DATE_EPOCH=1767225600
RUN python -m pip wheel --no-cache-dir --constraint constraints.txt --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
    && rm -rf /wheels \
    && useradd --uid 1000 --create-home gpudiag
USER 1000
WORKDIR /data
ENTRYPOINT ["gpudiag"]
CMD ["--help"]
