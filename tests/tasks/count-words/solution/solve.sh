#!/bin/bash
set -e
words=0
for file in "$TEXTS"/*.txt; do
    for word in $(cat "$file"); do
        words=$((words + 1))
    done
done
echo $words > /app/total
echo counted >> /var/log/counts
