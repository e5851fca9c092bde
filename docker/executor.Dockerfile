# An image for Spark executors (Kubernetes, or a standalone worker) with this package in it.
#
#   make wheel
#   docker build -f docker/executor.Dockerfile -t spark-with-estimator .
#
# It was written without a place to build it: take it as a beginning. The wheel needs glibc 2.35 or newer.
ARG SPARK_IMAGE=apache/spark:4.0.1-scala2.13-java17-python3-ubuntu
FROM ${SPARK_IMAGE}

USER root
# The Python that the driver has, too: functions do not travel between minor versions.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt dist/spark_estimator-*.whl /tmp/wheels/
# PyTorch first and alone: which build of it comes must not depend on the packages beside it. PySpark is the image's own.
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir "$(grep '^torch==' /tmp/wheels/constraints.txt | cut -d' ' -f1)" \
    && /opt/venv/bin/pip install --no-cache-dir /tmp/wheels/*.whl "pyarrow>=14" "pandas>=2.1,<3" \
    && rm -r /tmp/wheels
ENV PYSPARK_PYTHON=/opt/venv/bin/python
USER spark
