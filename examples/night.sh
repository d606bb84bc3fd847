#!/bin/sh
# The night on which a deploy kills the 2 a.m. sync: what is done twice, and what is lost?
# Runs in a folder of its own, on a free port, and leaves nothing behind.
#
#   cargo build --release -p matins-cli && sh examples/night.sh
set -eu

program=$(realpath "${MATINS:-$(dirname "$0")/../target/release/matins}")
folder=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
cd "$folder"
unset MATINS_CONFIG MATINS_STORE MATINS_SERVER MATINS_TOKEN

show() { printf '\n$ %s\n' "$*"; }
matins() { show matins "$@"; "$program" "$@"; }
start() {
    show "matins serve &"
    : > serve.log
    "$program" serve > serve.log 2>&1 &
    server=$!
    until grep -q ' is ready ' serve.log; do sleep 0.1; done
}

cat > matins.yaml <<'END'
listen: 127.0.0.1:0
tasks:
  sync_orders:
    executor: command
    shell: |
      echo "began   attempt $MATINS_ATTEMPT of $MATINS_EXECUTION_KEY" >> effects.log
      sleep 3
      echo "wrote   attempt $MATINS_ATTEMPT of $MATINS_EXECUTION_KEY" >> effects.log
      echo '{"orders": 42}'
schedules:
  orders:
    schedule: "0 2 * * *"
    timezone: Asia/Shanghai
    type: sync_orders
    execution_key: "orders-{{ occurrence.date }}"
END

start

echo
echo "# Two in the morning of 15 January. (We do not wait for it: --for stands in for the time.)"
matins schedule trigger orders --for 2024-01-15T02:00:00 | tee answer
id=$(tail -n 1 answer)
until grep -q began effects.log 2>/dev/null; do sleep 0.1; done

echo
echo "# The rolling update. Not even SIGTERM."
show 'kill -9 $server'
kill -9 "$server"
wait "$server" 2>/dev/null || true
start
until [ -n "$("$program" list --state completed 2>/dev/null)" ]; do sleep 0.1; done
matins show "$id"

echo
echo "# A nervous operator runs the night again, twice. A script somewhere does too."
matins schedule trigger orders --for 2024-01-15T02:00:00
matins schedule trigger orders --for 2024-01-15T02:00:00
matins enqueue sync_orders --key orders-2024-01-15
show cat effects.log
cat effects.log

if [ "$(grep -c wrote effects.log)" != 1 ]; then
    echo "The night went wrong: the orders were not written exactly once." >&2
    exit 1
fi
