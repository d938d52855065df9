#!/usr/bin/env bash
# `make test` as a stranger runs it: in a fresh clone of what is committed, as another user (if run as root), with an
# empty home and an empty temporary folder, without a locale, and with few open files.
# Usage: tests/clean_clone.sh [files or folders of tests]
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
python=$("${PYTHON:-python3.11}" -c "import sys; print(sys.executable)")  # itself, where the command is a shim
open_files=256

# Not below TMPDIR, whose path may be long: sockets lie below the folder.
place=$(mktemp -d /tmp/clean.XXXXXX)
trap 'rm -rf "$place"' EXIT
mkdir "$place/home" "$place/tmp"
git clone --quiet --no-hardlinks "$repository" "$place/asmil"

as_user=()
if [ "$(id -u)" = 0 ]; then
    nobody=(setpriv "--reuid=$(id -u nobody)" "--regid=$(id -g nobody)" --clear-groups)
    # through a shell: what setpriv itself starts still has the rights of root to find it
    for candidate in "$python" /usr/bin/python3.11; do
        if "${nobody[@]}" sh -c '"$0" -c "import ensurepip, venv"' "$candidate" 2>/dev/null; then
            python=$candidate
            chmod 755 "$place"
            chown -R "$(id -u nobody):$(id -g nobody)" "$place"
            as_user=("${nobody[@]}")
            break
        fi
    done
    if [ ${#as_user[@]} = 0 ]; then
        echo "note: the user nobody cannot run $python; the tests run as root (set PYTHON to one that all users can run)" >&2
    fi
fi

# What decides how packages are found is kept; everything else of the caller's environment is not.
kept=("PATH=$PATH")
while IFS= read -r name; do
    kept+=("$name=${!name}")
done < <(compgen -e | grep -E '^(PIP_.*|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY|ASMIL_DATA)$')

cd "$place/asmil"
ulimit -n "$open_files"
"${as_user[@]}" env -i "${kept[@]}" HOME="$place/home" TMPDIR="$place/tmp" LC_ALL=C PYTHON="$python" make test TESTS="$*"

left=$(find "$place/home" -mindepth 1 -maxdepth 1 ! -name .cache ! -name .config | head -n 5)
if [ -n "$left" ]; then
    echo "note: the tests left files in the home folder: $left" >&2
fi
