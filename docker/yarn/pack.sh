#!/bin/sh
# Packs an environment for YARN: the packages of Python with this one, as an archive that YARN unpacks for each executor.
# It made the environment here; its packing was not awaited.
# As https://spark.apache.org/docs/latest/api/python/tutorial/python_packaging.html describes ("Using Virtualenv").
# The hosts of the cluster need the same Python at the same path as this machine: venv-pack packs a link to it, and not
# the interpreter. With conda-pack the archive has an interpreter of its own.
#
#   make wheel && docker/yarn/pack.sh environment.tar.gz
set -eu
archive=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
extras=${EXTRAS:-demo}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/environment"
install() {
  "$folder/environment/bin/python" -m pip --disable-pip-version-check install --quiet \
    --constraint "$root/constraints.txt" "$@"
}
# PyTorch's build for processors unless TORCH_INDEX names another index, as of docker/Dockerfile.
install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' "$root/constraints.txt")"
install venv-pack "$(ls "$root"/dist/*.whl)[$extras]"
"$folder/environment/bin/venv-pack" --prefix "$folder/environment" --output "$archive"
