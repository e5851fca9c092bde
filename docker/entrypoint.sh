#!/bin/bash
# Starts one role in a container: master, worker, connect or jupyter (compose.yaml), driver or executor (Kubernetes), or
# any other program. Settings and secrets of compose.yaml are in /run/secrets.
set -euo pipefail

# A health check, by the shell alone: it runs every two seconds.
if [ "${1:-}" = listens ]; then
  exec 3<>"/dev/tcp/$2/$3"
  exit
fi

# The cluster of compose.yaml: its spark-defaults.conf, with the secret that all its parts share.
if [ -r /run/secrets/spark ]; then
  export SPARK_CONF_DIR=$HOME/conf
  mkdir -p "$SPARK_CONF_DIR"
  (
    umask 077
    cat >"$SPARK_CONF_DIR/spark-defaults.conf" <<END
spark.master ${CLUSTER_MASTER:-spark://master:7077}
spark.authenticate true
spark.authenticate.secret $(cat /run/secrets/spark)
spark.master.rest.enabled false
spark.ui.killEnabled false
spark.driver.host $(hostname -I | cut -d ' ' -f 1)
spark.driver.bindAddress 0.0.0.0
spark.driver.memory 600m
spark.executor.memory 600m
spark.executor.cores 1
spark.cores.max 2
spark.executor.instances 2
spark.ui.showConsoleProgress false
spark.sql.shuffle.partitions 2
spark.scheduler.barrier.maxConcurrentTasksCheck.interval 1s
END
  )
fi
if [ -r /run/secrets/connect ]; then
  SPARK_CONNECT_AUTHENTICATE_TOKEN=$(cat /run/secrets/connect)
  export SPARK_CONNECT_AUTHENTICATE_TOKEN
fi

role=${1:-}
case $role in
  master)
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master \
      --host "$(hostname)" --port 7077 --webui-port 8080
    ;;
  worker)
    exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker \
      --host "$(hostname)" --webui-port 8081 --cores 3 --memory 2g --work-dir "$HOME/work" "$CLUSTER_MASTER"
    ;;
  connect)
    exec "$SPARK_HOME/bin/spark-submit" --class org.apache.spark.sql.connect.service.SparkConnectServer \
      --conf spark.connect.grpc.binding.address=0.0.0.0 --conf spark.connect.grpc.binding.port=15002 spark-internal
    ;;
  jupyter)
    if [ -r /run/secrets/jupyter ]; then
      JUPYTER_TOKEN=$(cat /run/secrets/jupyter)
      export JUPYTER_TOKEN
    fi
    exec python -m jupyterlab --no-browser --ServerApp.ip=0.0.0.0 --ServerApp.port=8888 \
      --ServerApp.root_dir="$HOME/notebooks"
    ;;
  driver)
    # spark-submit --deploy-mode cluster gives the rest of its arguments to the pod of the driver.
    shift
    exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    # Spark's driver describes an executor by these variables.
    java_options=()
    while IFS= read -r line; do java_options+=("${line#*=}"); done \
      < <(env | grep '^SPARK_JAVA_OPT_' | sort -t _ -k 4 -n)
    classes="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*:${SPARK_EXTRA_CLASSPATH:-}"
    exec java "${java_options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "$classes" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  '')
    echo 'entrypoint.sh: name a role: master, worker, connect, jupyter, driver, executor, or a program' >&2
    exit 2
    ;;
  *)
    exec "$@"
    ;;
esac
