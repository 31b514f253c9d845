#!/usr/bin/env bash
# Table 1's records side by side on one GPU: a fit alone does not fill a large one.
#
#   tools/side_by_side.sh JOBS SECONDS ROW[:METHOD]...      such as: 7 3600 hopper ant:kmifqe-paper
#
# A row without a method has all its methods that have no record yet, in one process: auto then averages the two fits
# that KMIFQE and FQE have anyway.
#
# Logs and truths are made first, in the order of the rows; a fit begins when its row is ready and a place is free. What
# SECONDS cut short goes on from its snapshot next time.
# PRESET (fast), RESULTS (experiments/results), WORK (experiments-work), KMIFQE (the command), PREPARE (2, rows whose
# logs are made at once) and WORKERS (processes for each of these, as many as fill the cores) are taken from the
# environment. Words of each part: $WORK/words/.
set -u
if [ $# -lt 3 ]; then echo "usage: $0 JOBS SECONDS ROW[:METHOD]..." >&2; exit 2; fi
jobs_at_once=$1 seconds=$2; shift 2
preset=${PRESET:-fast} results=${RESULTS:-experiments/results} work=${WORK:-experiments-work} command=${KMIFQE:-kmifqe}
at_once=${PREPARE:-2}
workers=${WORKERS:-$(( ($(nproc) + at_once - 1) / at_once ))}
words=$work/words ready=$work/ready-$preset
mkdir -p "$words" "$ready"
rm -f "$ready"/*  # what is there already is found by --resume, and may have gone since
export XLA_PYTHON_CLIENT_PREALLOCATE=false  # else the first fit takes three quarters of the memory
begun=$SECONDS
left() { echo $((seconds - (SECONDS - begun))); }

prepare() {  # ROW: on the processor, away from the fits
  JAX_PLATFORMS=cpu timeout "$(left)" $command reproduce data --preset "$preset" --only "$1" --resume \
    --results "$work/data-records" --work "$work" --workers "$workers" > "$words/$1" 2>&1 \
    && touch "$ready/$1" && echo "$((SECONDS - begun)) s: $1 is ready" || echo "$1 was not made ready: $words/$1"
}

fit() {  # ROW, or ROW:METHOD
  local row=${1%%:*} method=() said=$words/${1/:/-}-fit
  [ "$row" = "$1" ] || method=(--method "${1##*:}")
  timeout --signal INT --kill-after 10 "$(left)" $command reproduce table1 --preset "$preset" --only "$row" "${method[@]}" \
    --resume --no-prefetch --results "$results" --work "$work" > "$said" 2>&1
  echo "$((SECONDS - begun)) s: $1, exit code $?: $(tr '\r' '\n' < "$said" | grep -v '^ *$' | tail -n 1)"
}

waiting=("$@")
prepare_all() {
  local row
  for row in $(printf '%s\n' "$@" | cut -d: -f1 | awk '!seen[$0]++'); do
    if [ "$row" = pendulum ]; then touch "$ready/$row"; continue; fi  # its log is made by the fit, in seconds
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do sleep 1; done
    [ "$(left)" -gt 15 ] || break
    prepare "$row" &
  done
  wait
}
prepare_all "$@" & preparing=($!)
fits=()
alive() { local n=0 pid; for pid in "$@"; do kill -0 "$pid" 2> /dev/null && n=$((n + 1)); done; echo $n; }
while [ ${#waiting[@]} -gt 0 ] && [ "$(left)" -gt 15 ]; do
  later=() still=$(alive "${preparing[@]-}")
  for item in "${waiting[@]}"; do
    if [ -e "$ready/${item%%:*}" ] && [ "$(alive "${fits[@]-}")" -lt "$jobs_at_once" ]; then
      fit "$item" & fits+=($!)
    elif [ -e "$ready/${item%%:*}" ] || [ "$still" -gt 0 ]; then
      later+=("$item")
    else
      echo "$item is left out: its row is not ready"
    fi
  done
  waiting=("${later[@]-}"); [ -n "${waiting[0]-}" ] || waiting=()
  sleep 1
done
[ ${#waiting[@]} -eq 0 ] || echo "no time was left for: ${waiting[*]}"
wait
