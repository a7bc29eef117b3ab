#!/usr/bin/env bash
# Make .venv if there is none, install what it lacks, then run the notebooks (utils/runner.py).
#   ./run_all.sh                     all notebooks on data/sample
#   ./run_all.sh --help              the options
#   ./run_all.sh test [pytest args]  all tests
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
venv=$root/.venv
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

find_python() {
  local candidate
  for candidate in "$venv/bin/python" "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "run_all.sh: found no Python 3.11 or newer; install one, or name it: PYTHON=... $0" >&2
  return 1
}

older_python() { # the packages of .venv-kaggle have no wheels for newer ones
  local candidate
  for candidate in "$root/.venv-kaggle/bin/python" "$python" python3.11 python3.12 python3.13; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)))' \
      2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

make_venv() { # make_venv FOLDER PYTHON
  if "$1/bin/python" -c '' 2>/dev/null; then return; fi
  "$2" -m venv --clear "$1" || {
    rm -rf "$1"
    echo "run_all.sh: could not make ${1##*/} (Debian, Ubuntu: apt install python3-venv)" >&2
    exit 1
  }
}

install() { # install FOLDER FILE...: pip runs only when FILEs changed since the last time
  local stamp=$1/.installed-${2##*/} wanted
  wanted=$(cat "${@:2}" | cksum)
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "Installing ${2##*/} into ${1##*/}" >&2
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2"
    { echo "$wanted" >"$stamp"; } 2>/dev/null || true # in a read-only folder pip looks every time
  fi
}

python=$(find_python)
needed=requirements-dev.txt
if [ "${1:-}" != test ]; then
  case " $* " in *" --help "* | *" -h "*) exec "$python" -P -m utils.options --help ;; esac
  needed=$("$python" -P -m utils.options "$@") # a wrong option ends here, before any installation
fi

make_venv "$venv" "$python"
for file in $needed; do install "$venv" "$root/$file" "$root"/requirements*.txt; done

if [ "${1:-}" = test ]; then
  cd "$root"
  if old=$(older_python); then # the Kaggle notebook has to run on older packages, too
    make_venv "$root/.venv-kaggle" "$old"
    # without what these ask for themselves: xgboost wants 200 MB for GPUs
    PIP_NO_DEPS=1 install "$root/.venv-kaggle" "$root/tests/data/requirements-kaggle.txt"
  else
    echo "run_all.sh: no Python 3.11 to 3.13, so nothing is tested with older packages" >&2
  fi
  exec "$venv/bin/python" -m pytest "${@:2}"
fi
exec "$venv/bin/python" -P -m utils.runner "$@"
