# docker build -t thaw .        With PyTorch from its own index, as for CPUs or old drivers: --build-arg BUILD=cpu (or cu126)
FROM python:3.12-slim
ARG BUILD=
WORKDIR /thaw
COPY requirements.txt .
RUN if [ "$BUILD" ]; then pip install --no-cache-dir torch torchvision --index-url "https://download.pytorch.org/whl/$BUILD"; fi
RUN pip install --no-cache-dir -r requirements.txt
RUN --mount=type=bind,target=/source cd /source && cp -r *.py LICENSE NOTICE datasets deploy engine metrics nets report tools utils /thaw
CMD ["python", "train.py"]
