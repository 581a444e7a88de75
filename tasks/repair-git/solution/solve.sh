#!/bin/bash
set -eu
cd /app/project
cat > total.py <<'PY'
PRICES = [9.99, 12.48]
SHIPPING = 4.88


def total():
    return round(sum(PRICES) + SHIPPING, 2)


print("total:", total())
PY
git add total.py
git commit -q --no-edit
git cherry-pick "$(git reflog --format='%H %gs' | grep 'commit: Add the tax table' | cut -d' ' -f1)"
git status
