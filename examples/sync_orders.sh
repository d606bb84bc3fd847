#!/bin/sh
# What the schedule in matins.yaml runs. Payload on standard input; the last line, being JSON,
# becomes the task's result.
set -eu
payload=$(cat)
echo "attempt $MATINS_ATTEMPT for ${MATINS_EXECUTION_KEY:-no key}: payload $payload"
sleep 1
echo '{"orders": 42}'
