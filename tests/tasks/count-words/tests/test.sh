#!/bin/bash
# Twelve words in all; the log keeps its first line.
reward=0
[ "$(cat /app/total)" = 12 ] && [ "$(cat /var/log/counts)" = "$(printf 'made\ncounted')" ] && reward=1
echo "TEXTS=$TEXTS total=$(cat /app/total)"
echo $reward > /logs/verifier/reward.txt
