#!/bin/sh
# Runs a program on YARN with the packed environment, in cluster mode.
#
#   docker/yarn/submit.sh environment.tar.gz docker/demo.py function
set -eu
archive=$1
shift
# The path is relative to the folder in which YARN unpacks the archive, on the driver's and the executors' hosts.
python=./environment/bin/python
# All ranks start together: as many executors as ranks, and no dynamic allocation. The memory of a rank, and
# of the driver's Python, counts as overhead.
exec spark-submit \
  --master yarn \
  --deploy-mode cluster \
  --archives "$archive#environment" \
  --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON="$python" \
  --conf spark.executorEnv.PYSPARK_PYTHON="$python" \
  --conf spark.authenticate=true \
  --conf spark.dynamicAllocation.enabled=false \
  --driver-memory 2g \
  --conf spark.driver.memoryOverhead=2g \
  --num-executors 2 \
  --executor-cores 1 \
  --executor-memory 2g \
  --conf spark.executor.memoryOverhead=2g \
  "$@"
