#!/usr/bin/env bash
# Runs one stage of `make test`, and notes how long it took.
#
#   stage.sh begin            forgets what was noted
#   stage.sh NAME COMMAND…    runs a stage; when it fails, says which one
#   stage.sh table            prints what was noted
set -euo pipefail

notes="${REPORTS:-target/reports}/stages.txt"

table() {
    printf '\n%-12s %8s\n' stage seconds
    awk '{ printf "%-12s %8d  %s\n", $1, $2, $3; sum += $2 } END { printf "%-12s %8d\n", "together", sum }' "$notes"
}

case "$1" in
begin)
    mkdir -p "$(dirname "$notes")"
    : >"$notes"
    ;;
table) table ;;
*)
    name=$1
    shift
    status=0
    began=$SECONDS
    "$@" || status=$?
    echo "$name $((SECONDS - began)) $([ "$status" -eq 0 ] && echo passed || echo FAILED)" >>"$notes"
    if [ "$status" -ne 0 ]; then
        table
        echo "the stage \"$name\" failed: \`make $name\` runs it alone" >&2
    fi
    exit "$status"
    ;;
esac
