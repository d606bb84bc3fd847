#!/bin/sh
# The HTTP API with curl alone. Needs a running server and curl:
#
#   target/release/matins -c examples/matins.yaml serve
#   MATINS_TOKEN=$(cat examples/.matins/token) sh examples/curl.sh
set -eu
server=${MATINS_SERVER:-http://127.0.0.1:6284}
: "${MATINS_TOKEN:?set it to the text of DATA_DIR/token}"

api() { # method, path, body
    curl --silent --show-error --request "$1" "$server$2" \
        --header "Authorization: Bearer $MATINS_TOKEN" \
        --header "Content-Type: application/json" ${3:+--data "$3"}
    echo
}

field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }

key="curl-$(date +%s)"

echo "# Enqueue. The key has business meaning: this work is to be done once."
body='{"type": "command", "payload": {"argv": ["echo", "hello"]}, "execution_key": "'$key'"}'
answer=$(api POST /api/v1/tasks "$body")
id=$(echo "$answer" | field id | head -n 1)
echo "$answer"

echo "# Its output, followed until it ends."
curl --silent --no-buffer "$server/api/v1/tasks/$id/output?follow=1" \
    --header "Authorization: Bearer $MATINS_TOKEN"

echo "# Enqueue the same key again: the same task, deduplicated, nothing runs."
api POST /api/v1/tasks "$body"

echo "# Why is it where it is?"
api GET "/api/v1/tasks/$id/why"

echo "# A schedule, previewed over the night on which Berlin's clocks go back."
api POST /api/v1/schedules/preview \
    '{"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "after": "2026-10-24T00:00:00Z",
      "count": 2}'

echo "# What is wrong with a request is said, with a stable code."
api POST /api/v1/tasks '{"type": "command", "payload": {}, "priority": 1000}'

echo "# The store at a glance."
api GET /api/v1/status
