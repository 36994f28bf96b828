#!/usr/bin/env bash
# Checks that the toolchains are there, and says plainly what is missing.
set -u
missing=0

need() { # command, what it is for, where to get it
    if ! command -v "$1" >/dev/null 2>&1; then
        echo "missing: $1 ($2). $3" >&2
        missing=1
    fi
}

need cargo "builds the engine" "Install Rust 1.88 or later, for instance with rustup."
need cc "links the engine" "Install a C compiler, such as Debian's build-essential."
need python3 "the Python package and the demo" "Install Python 3.10 or later."
need java "runs ZooKeeper" "Install a Java runtime, 11 or later."
need mvn "fetches ZooKeeper" "Install Apache Maven."

if command -v python3 >/dev/null 2>&1; then
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "too old: python3 is $(python3 -V 2>&1 | cut -d" " -f2), and 3.10 or later is needed." >&2
        missing=1
    fi
    if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        echo "missing: Python's venv module. Install it, such as Debian's python3-venv." >&2
        missing=1
    fi
fi
exit $missing
