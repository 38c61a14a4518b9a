# docker build -t thaw .        For CUDA, add: --build-arg BASE=pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime
ARG BASE=python:3.12-slim
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends libgl1 libglib2.0-0
WORKDIR /thaw
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
RUN --mount=type=bind,target=/source cd /source && cp -r *.py LICENSE NOTICE datasets deploy engine metrics nets report tools utils /thaw
CMD ["python", "train.py"]
