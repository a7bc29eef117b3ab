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

install() { # install FILE: pip runs only when a requirements file changed since the last time
  local stamp=$venv/.installed-$1 wanted
  wanted=$(cat "$root"/requirements*.txt | cksum)
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "Installing $1 into .venv" >&2
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$root/$1"
    { echo "$wanted" >"$stamp"; } 2>/dev/null || true # in a read-only folder pip looks every time
  fi
}

python=$(find_python)
needed=requirements-dev.txt
if [ "${1:-}" != test ]; then
  case " $* " in *" --help "* | *" -h "*) exec "$python" -P -m utils.options --help ;; esac
  needed=$("$python" -P -m utils.options "$@") # a wrong option ends here, before any installation
fi

if ! "$venv/bin/python" -c '' 2>/dev/null; then
  "$python" -m venv --clear "$venv" || {
    rm -rf "$venv"
    echo "run_all.sh: could not make .venv (Debian, Ubuntu: apt install python3-venv)" >&2
    exit 1
  }
fi
for file in $needed; do install "$file"; done

if [ "${1:-}" = test ]; then
  cd "$root"
  exec "$venv/bin/python" -m pytest "${@:2}"
fi
exec "$venv/bin/python" -P -m utils.runner "$@"
