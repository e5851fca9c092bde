#!/bin/sh
# Cluster mode: the driver is a pod that spark-submit creates, and Spark itself makes the headless service for it.
# Tried against a stand-in for the API server, not on a cluster. As https://spark.apache.org/docs/latest/running-on-kubernetes.html describes.
#
#   API_SERVER=https://HOST:6443 IMAGE=registry.example.com/spark-estimator-executor:0.1.0 docker/kubernetes/submit.sh
set -eu
here=$(dirname "$0")
kubectl apply --filename "$here/access.yaml"
# The memory of a rank, and of the driver's Python, counts as overhead: it is a process beside Java.
spark-submit \
  --master "k8s://$API_SERVER" \
  --deploy-mode cluster \
  --name spark-estimator-demo \
  --conf spark.kubernetes.namespace=spark-estimator \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark \
  --conf spark.kubernetes.container.image="$IMAGE" \
  --conf spark.kubernetes.driver.podTemplateFile="$here/pod.yaml" \
  --conf spark.kubernetes.executor.podTemplateFile="$here/pod.yaml" \
  --conf spark.authenticate=true \
  --conf spark.driver.memoryOverhead=2g \
  --conf spark.executor.instances=2 \
  --conf spark.executor.cores=1 \
  --conf spark.executor.memory=2g \
  --conf spark.executor.memoryOverhead=2g \
  --conf spark.dynamicAllocation.enabled=false \
  local:///opt/spark-estimator/demo.py function
